import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/**
 * RocketMQ's own filters behind a pipe: one JSON object per line in, one per line out, in order.
 *
 * <p>{"rows": [{name: text}]} sets the messages for the lines that follow and gives {}. {"sql": text} gives
 * {"compiles": bool, "answers": "TFNE"}, one letter per message: true, false, null, or an exception. {"tags": text}
 * gives {"compiles": bool, "all": bool, "tags": [text], "codes": [int]}. {"hash": [text]} gives {"hashes": [int]}.
 * It ends with its input.
 */
public final class FilterOracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        List<?> rows = new ArrayList<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<?, ?> request = (Map<?, ?>) new Json(line).value();
            if (request.containsKey("rows")) {
                rows = (List<?>) request.get("rows");
                out.println("{}");
            } else if (request.containsKey("sql")) {
                out.println(sql((String) request.get("sql"), rows));
            } else if (request.containsKey("tags")) {
                out.println(tags((String) request.get("tags")));
            } else {
                List<Object> hashes = new ArrayList<>();
                for (Object text : (List<?>) request.get("hash")) {
                    hashes.add(text.hashCode());
                }
                out.println("{\"hashes\": " + hashes + "}");
            }
            if (!in.ready()) {
                out.flush();
            }
        }
        out.flush();
    }

    private static String sql(String text, List<?> rows) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (MQFilterException refused) {
            return "{\"compiles\": false, \"answers\": \"\"}";
        }
        StringBuilder answers = new StringBuilder();
        for (Object row : rows) {
            answers.append(evaluate(expression, (Map<?, ?>) row));
        }
        return "{\"compiles\": true, \"answers\": \"" + answers + "\"}";
    }

    private static char evaluate(Expression expression, Map<?, ?> row) {
        EvaluationContext context = new EvaluationContext() {
            @Override
            public Object get(String name) {
                return row.get(name);
            }

            @Override
            public Map<String, Object> keyValues() {
                return null;
            }
        };
        try {
            Object value = expression.evaluate(context);
            return value == null ? 'N' : Boolean.TRUE.equals(value) ? 'T' : 'F';
        } catch (Exception thrown) {
            return 'E';
        }
    }

    private static String tags(String text) {
        SubscriptionData subscription;
        try {
            subscription = FilterAPI.buildSubscriptionData("topic", text);
        } catch (Exception refused) {
            return "{\"compiles\": false}";
        }
        Set<String> quoted = new TreeSet<>();
        for (String tag : subscription.getTagsSet()) {
            quoted.add(Json.quote(tag));
        }
        boolean all = subscription.getSubString().equals(SubscriptionData.SUB_ALL);
        return "{\"compiles\": true, \"all\": " + all + ", \"tags\": " + quoted + ", \"codes\": "
            + subscription.getCodeSet() + "}";
    }

    /** As much JSON as this program needs: objects, arrays and strings. */
    private static final class Json {
        private final String text;
        private int at;

        Json(String text) {
            this.text = text;
        }

        static String quote(String value) {
            StringBuilder quoted = new StringBuilder("\"");
            for (char unit : value.toCharArray()) {
                quoted.append(String.format("\\u%04x", (int) unit));
            }
            return quoted.append('"').toString();
        }

        Object value() {
            switch (next()) {
                case '{':
                    Map<String, Object> object = new LinkedHashMap<>();
                    while (more('}')) {
                        next();
                        String name = string();
                        next();
                        object.put(name, value());
                    }
                    return object;
                case '[':
                    List<Object> array = new ArrayList<>();
                    while (more(']')) {
                        array.add(value());
                    }
                    return array;
                case '"':
                    return string();
                default:
                    throw new IllegalArgumentException("no JSON at " + at + ": " + text);
            }
        }

        private char next() {
            while (text.charAt(at) == ' ') {
                at++;
            }
            return text.charAt(at++);
        }

        private boolean more(char end) {
            char found = next();
            if (found == end) {
                return false;
            }
            if (found != ',') {
                at--;
            }
            return true;
        }

        private String string() {
            StringBuilder value = new StringBuilder();
            for (char unit = text.charAt(at++); unit != '"'; unit = text.charAt(at++)) {
                if (unit != '\\') {
                    value.append(unit);
                    continue;
                }
                char escape = text.charAt(at++);
                if (escape == 'u') {
                    value.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                } else {
                    int code = "bfnrt".indexOf(escape);
                    value.append(code < 0 ? escape : "\b\f\n\r\t".charAt(code));
                }
            }
            return value.toString();
        }
    }
}
