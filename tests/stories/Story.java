import java.io.Closeable;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * What a user of RocketMQ 5 does, with Apache's Java client, as a transcript: codes, attempts and order, nothing random.
 *
 * <p>Usage: {@code java -cp CLIENT_JAR Story.java OPEN_ADDRESS TLS_ADDRESS GUARDED_ADDRESS [CHAPTER...]}. The topics,
 * groups and users are those of {@code story_world.py}. Chapters run at the same time, for most of the time is waiting;
 * they are printed in their order as {@code chapter | step | outcome}. {@code story.py} tells the same with the Python
 * client.
 */
public final class Story {
    private static final ClientServiceProvider SERVICE = ClientServiceProvider.loadService();
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    private static final Duration HELD = Duration.ofSeconds(10);
    private static final Duration LONG_HELD = Duration.ofSeconds(60);
    private static String open;
    private static String tls;
    private static String guarded;

    private final String name;
    private final StringBuffer lines = new StringBuffer();

    private Story(String name) {
        this.name = name;
    }

    private interface Chapter {
        void tell(Story story) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        open = arguments[0];
        tls = arguments[1];
        guarded = arguments[2];
        Map<String, Chapter> chapters = new LinkedHashMap<>();
        chapters.put("plain", Story::plain);
        chapters.put("redelivery", Story::redelivery);
        chapters.put("fifo", Story::fifo);
        chapters.put("delay", Story::delay);
        chapters.put("transaction", Story::transaction);
        chapters.put("push", Story::push);
        chapters.put("filter", Story::filter);
        chapters.put("refusal", Story::refusal);
        chapters.put("tls", Story::tls);
        chapters.put("acl", Story::acl);
        List<String> wanted = List.of(arguments).subList(3, arguments.length);
        ExecutorService pool = Executors.newCachedThreadPool();
        List<Future<String>> told = new ArrayList<>();
        for (Map.Entry<String, Chapter> chapter : chapters.entrySet()) {
            if (wanted.isEmpty() || wanted.contains(chapter.getKey())) {
                told.add(pool.submit(() -> tell(chapter.getKey(), chapter.getValue())));
            }
        }
        for (Future<String> lines : told) {
            System.out.print(lines.get());
            System.out.flush();
        }
        // The clients' own threads would keep the process for a while.
        Runtime.getRuntime().halt(0);
    }

    private static String tell(String name, Chapter chapter) {
        Story story = new Story(name);
        try {
            chapter.tell(story);
        } catch (Throwable error) {
            story.say("broken off", String.valueOf(error));
            error.printStackTrace();
        }
        return story.lines.toString();
    }

    // ------------------------------------------------------------ chapters

    private void plain() throws Exception {
        try (Producer producer = producer(open, "story_plain");
                SimpleConsumer consumer = consumer("g_plain", "story_plain", FilterExpression.SUB_ALL)) {
            for (int number = 1; number <= 3; number++) {
                Message message = message("story_plain", "sync-" + number)
                    .setTag("tag").setKeys("k" + number, "also").addProperty("colour", "red").build();
                say("send sync-" + number, outcome(() -> producer.send(message)));
            }
            List<CompletableFuture<SendReceipt>> sent = new ArrayList<>();
            for (int number = 1; number <= 5; number++) {
                sent.add(producer.sendAsync(message("story_plain", "async-" + number).build()));
            }
            for (int number = 1; number <= 5; number++) {
                CompletableFuture<SendReceipt> future = sent.get(number - 1);
                say("send async-" + number, outcome(future::get));
            }
            List<MessageView> received = receive(consumer, 8, LONG_HELD);
            received.sort((one, other) -> body(one).compareTo(body(other)));
            for (MessageView message : received) {
                List<String> keys = new ArrayList<>(message.getKeys());
                Collections.sort(keys);
                say("received " + body(message), "attempt=" + message.getDeliveryAttempt()
                    + " tag=" + message.getTag().orElse("-") + " keys=" + String.join(",", keys)
                    + " colour=" + message.getProperties().getOrDefault("colour", "-"));
            }
            for (MessageView message : received) {
                say("ack " + body(message), outcome(() -> ack(consumer, message)));
            }
            say("ack a second time", outcome(() -> ack(consumer, received.get(0))));
            say("receive when all is acked", consumer.receive(32, LONG_HELD).size() + " messages");
        }
    }

    private void redelivery() throws Exception {
        try (Producer producer = producer(open, "story_again");
                SimpleConsumer consumer = consumer("g_again", "story_again", FilterExpression.SUB_ALL)) {
            producer.send(message("story_again", "once").build());
            MessageView first = receive(consumer, 1, HELD).get(0);
            say("first delivery", "attempt=" + first.getDeliveryAttempt());
            MessageView second = receive(consumer, 1, HELD).get(0);
            say("not acked, delivered again", "attempt=" + second.getDeliveryAttempt());
            say("ack by the expired receipt", outcome(() -> ack(consumer, first)));
            say("hold it longer", outcome(() -> change(consumer, second, Duration.ofSeconds(12))));
            say("nothing while it is held", consumer.receive(1, HELD).size() + " messages");
            MessageView third = receive(consumer, 1, LONG_HELD).get(0);
            say("held time is over", "attempt=" + third.getDeliveryAttempt());
            say("give it back in a second", outcome(() -> change(consumer, third, Duration.ofSeconds(1))));
            MessageView fourth = receive(consumer, 1, LONG_HELD).get(0);
            say("given back", "attempt=" + fourth.getDeliveryAttempt());
            say("ack", outcome(() -> ack(consumer, fourth)));
            say("receive after the ack", consumer.receive(1, HELD).size() + " messages");
        }
    }

    private void fifo() throws Exception {
        try (Producer producer = producer(open, "story_fifo");
                SimpleConsumer consumer = consumer("g_fifo", "story_fifo", FilterExpression.SUB_ALL)) {
            for (String group : List.of("one", "two")) {
                for (int number = 1; number <= 4; number++) {
                    Message message = message("story_fifo", group + "-" + number).setMessageGroup(group).build();
                    say("send " + group + "-" + number, outcome(() -> producer.send(message)));
                }
            }
            Map<String, List<String>> orders = new TreeMap<>();
            int count = 0;
            for (long end = deadline(30); count < 8 && before(end);) {
                for (MessageView message : consumer.receive(2, LONG_HELD)) {
                    orders.computeIfAbsent(message.getMessageGroup().orElse("-"), key -> new ArrayList<>())
                        .add(body(message) + "/" + message.getDeliveryAttempt());
                    consumer.ack(message);
                    count++;
                }
            }
            for (Map.Entry<String, List<String>> order : orders.entrySet()) {
                say("order of " + order.getKey(), String.join(" ", order.getValue()));
            }
            for (int number = 5; number <= 6; number++) {
                producer.send(message("story_fifo", "one-" + number).setMessageGroup("one").build());
            }
            MessageView held = receive(consumer, 1, HELD).get(0);
            say("taken and not acked", body(held) + " attempt=" + held.getDeliveryAttempt());
            say("nothing of the group while it is held", consumer.receive(8, HELD).size() + " messages");
            List<String> rest = new ArrayList<>();
            for (long end = deadline(40); rest.size() < 2 && before(end);) {
                for (MessageView message : consumer.receive(1, LONG_HELD)) {
                    rest.add(body(message) + "/" + message.getDeliveryAttempt());
                    consumer.ack(message);
                }
            }
            say("held time is over", String.join(" ", rest));
        }
    }

    private void delay() throws Exception {
        try (Producer producer = producer(open, "story_delay");
                SimpleConsumer consumer = consumer("g_delay", "story_delay", FilterExpression.SUB_ALL)) {
            long due = System.currentTimeMillis() + 3000;
            SendReceipt kept = producer.send(message("story_delay", "kept").setDeliveryTimestamp(due).build());
            SendReceipt recalled =
                producer.send(message("story_delay", "recalled").setDeliveryTimestamp(due + 3000).build());
            say("recall", outcome(() -> producer.recallMessage("story_delay", recalled.getRecallHandle())));
            say("recall again", outcome(() -> producer.recallMessage("story_delay", recalled.getRecallHandle())));
            MessageView message = receive(consumer, 1, LONG_HELD).get(0);
            long now = System.currentTimeMillis();
            say("delivered", body(message) + " attempt=" + message.getDeliveryAttempt() + (now < due ? " EARLY" : "")
                + " deliveryTimestamp=" + (message.getDeliveryTimestamp().orElse(0L) == due ? "as sent" : "other"));
            consumer.ack(message);
            say("recall what was delivered",
                outcome(() -> producer.recallMessage("story_delay", kept.getRecallHandle())));
            say("recall by a made-up handle", outcome(() -> producer.recallMessage("story_delay", "made-up")));
            SendReceipt past = producer.send(
                message("story_delay", "past").setDeliveryTimestamp(System.currentTimeMillis() - 10_000).build());
            say("time in the past", past.getRecallHandle() == null || past.getRecallHandle().isEmpty()
                ? "no recall handle" : "has a recall handle");
            List<MessageView> rest = receive(consumer, 1, LONG_HELD);
            say("delivered at once", body(rest.get(0)));
            consumer.ack(rest.get(0));
            Thread.sleep(Math.max(0, due + 6000 - System.currentTimeMillis()));
            say("nothing of the recalled one", consumer.receive(8, LONG_HELD).size() + " messages");
            long later = System.currentTimeMillis() + Duration.ofDays(2).toMillis();
            say("more than a day ahead", outcome(
                () -> producer.send(message("story_delay", "late").setDeliveryTimestamp(later).build())));
        }
    }

    private void transaction() throws Exception {
        List<String> checked = Collections.synchronizedList(new ArrayList<>());
        try (Producer producer = SERVICE.newProducerBuilder().setClientConfiguration(configuration(open))
                .setTopics("story_half").setTransactionChecker(message -> {
                    checked.add(body(message));
                    return body(message).endsWith("rollback") || body(message).equals("rolled-back")
                        ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
                }).build();
                SimpleConsumer consumer = consumer("g_half", "story_half", FilterExpression.SUB_ALL)) {
            Transaction committed = producer.beginTransaction();
            say("send", outcome(() -> producer.send(message("story_half", "committed").build(), committed)));
            say("nothing before the commit", consumer.receive(8, LONG_HELD).size() + " messages");
            say("commit", outcome(() -> {
                committed.commit();
                return null;
            }));
            MessageView message = receive(consumer, 1, LONG_HELD).get(0);
            say("received", body(message) + " attempt=" + message.getDeliveryAttempt());
            consumer.ack(message);
            say("commit again", outcome(() -> {
                committed.commit();
                return null;
            }));
            Transaction rolledBack = producer.beginTransaction();
            producer.send(message("story_half", "rolled-back").build(), rolledBack);
            say("roll back", outcome(() -> {
                rolledBack.rollback();
                return null;
            }));
            say("commit what was rolled back", outcome(() -> {
                rolledBack.commit();
                return null;
            }));
            producer.send(message("story_half", "checked-commit").build(), producer.beginTransaction());
            producer.send(message("story_half", "checked-rollback").build(), producer.beginTransaction());
            // RocketMQ may ask about a commit that it has not noted yet, and then delivers it twice: not asked here.
            MessageView late = message;
            while (body(late).equals("committed")) {
                late = receive(consumer, 1, LONG_HELD).get(0);
                consumer.ack(late);
            }
            say("received after the check", body(late) + " attempt=" + late.getDeliveryAttempt());
            waitUntil(60, () -> checked.contains("checked-rollback"));
            say("asked about a committed one", String.valueOf(checked.contains("checked-commit")));
            say("asked about one to roll back", String.valueOf(checked.contains("checked-rollback")));
            List<MessageView> rest = new ArrayList<>(consumer.receive(8, LONG_HELD));
            rest.removeIf(each -> !body(each).contains("roll"));
            say("nothing of those rolled back", listed(rest));
        }
    }

    private void push() throws Exception {
        try (Producer producer = producer(open, "story_push", "story_push_fifo")) {
            List<String> seen = Collections.synchronizedList(new ArrayList<>());
            for (String body : List.of("good", "bad", "dead")) {
                say("send " + body, outcome(() -> producer.send(message("story_push", body).setTag(body).build())));
            }
            for (String body : List.of("bad-1", "good-2")) {
                say("send " + body, outcome(
                    () -> producer.send(message("story_push_fifo", body).setMessageGroup("one").build())));
            }
            MessageListener fails = message -> {
                seen.add(body(message) + "/" + message.getDeliveryAttempt());
                boolean good = body(message).startsWith("good")
                    || Collections.frequency(bodies(seen), body(message)) > (body(message).equals("bad") ? 2 : 1)
                    && !body(message).equals("dead");
                return good ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
            };
            try (Closeable one = pushed("g_push", "story_push", "good || bad", fails);
                    Closeable two = pushed("g_push_dead", "story_push", "dead", fails);
                    Closeable three = pushed("g_push_fifo", "story_push_fifo", "*", fails)) {
                waitUntil(60, () -> Collections.frequency(bodies(seen), "bad") >= 3
                    && Collections.frequency(bodies(seen), "dead") >= 2 && bodies(seen).contains("good-2"));
                // Whatever comes too often would come within this time.
                Thread.sleep(12_000);
            }
            say("listener that succeeds", of(seen, "good"));
            say("listener that fails twice", of(seen, "bad"));
            say("listener that always fails, one retry", of(seen, "dead"));
            say("in order, fails once", of(seen, "bad-1") + " then " + of(seen, "good-2"));
        }
    }

    private void filter() throws Exception {
        FilterExpression tags = new FilterExpression("a || c", FilterExpressionType.TAG);
        FilterExpression sql = new FilterExpression("n > 1 AND TAGS <> 'c'", FilterExpressionType.SQL92);
        FilterExpression wrong = new FilterExpression("n >", FilterExpressionType.SQL92);
        try (Producer producer = producer(open, "story_filter")) {
            int number = 0;
            for (String tag : List.of("a", "b", "c", "b")) {
                number++;
                producer.send(message("story_filter", tag + number).setTag(tag)
                    .addProperty("n", String.valueOf(number)).build());
            }
            producer.send(message("story_filter", "untagged").addProperty("n", "9").build());
        }
        try (SimpleConsumer consumer = consumer("g_filter_tag", "story_filter", tags)) {
            say("tags a || c", received(consumer, 2));
            say("nothing else", consumer.receive(8, LONG_HELD).size() + " messages");
        }
        try (SimpleConsumer consumer = consumer("g_filter_sql", "story_filter", sql)) {
            say("n > 1 AND TAGS <> 'c'", received(consumer, 2));
            say("nothing else", consumer.receive(8, LONG_HELD).size() + " messages");
        }
        say("SQL that cannot be parsed", outcome(() -> {
            try (SimpleConsumer consumer = consumer("g_filter_wrong", "story_filter", wrong)) {
                return consumer.receive(1, LONG_HELD);
            }
        }));
    }

    private void refusal() throws Exception {
        try (Producer producer = producer(open, "story_plain")) {
            say("send to an unknown topic",
                outcome(() -> producer.send(message("story_unknown", "x").build())));
            say("send an empty body", outcome(() -> producer.send(message("story_refusal", "").build())));
            say("send a body over 4 MiB", outcome(() -> producer.send(SERVICE.newMessageBuilder()
                .setTopic("story_refusal").setBody(new byte[(4 << 20) + 1]).build())));
            say("send a delayed message to a normal topic", outcome(() -> producer.send(
                message("story_refusal", "x").setDeliveryTimestamp(System.currentTimeMillis() + 1000).build())));
            say("send a message with a group to a normal topic", outcome(
                () -> producer.send(message("story_refusal", "x").setMessageGroup("one").build())));
            MessageBuilder many = message("story_refusal", "x");
            for (int number = 0; number < 129; number++) {
                many.addProperty("p" + number, "v");
            }
            say("send 129 properties", outcome(() -> producer.send(many.build())));
            say("send 17 KiB of properties", outcome(() -> producer.send(
                message("story_refusal", "x").addProperty("large", "v".repeat(17 << 10)).build())));
            say("send a property of the system", outcome(() -> producer.send(
                message("story_refusal", "x").addProperty("UNIQ_KEY", "v").build())));
        }
        try (SimpleConsumer consumer = consumer("g_refusal", "story_refusal", FilterExpression.SUB_ALL)) {
            say("receive for half a second", outcome(() -> consumer.receive(1, Duration.ofMillis(500))));
            say("receive for 13 hours", outcome(() -> consumer.receive(1, Duration.ofHours(13))));
            say("receive 33", outcome(() -> consumer.receive(33, LONG_HELD)));
            say("receive 0", outcome(() -> consumer.receive(0, LONG_HELD)));
        }
        say("subscribe to an unknown topic", outcome(() -> {
            try (SimpleConsumer consumer = consumer("g_refusal", "story_unknown", FilterExpression.SUB_ALL)) {
                return consumer.receive(1, LONG_HELD);
            }
        }));
    }

    private void tls() throws Exception {
        ClientConfiguration safe = builder(tls).enableSsl(true).build();
        try (Producer producer = producer(safe, "story_tls");
                SimpleConsumer consumer = consumer(safe, "g_tls", "story_tls", FilterExpression.SUB_ALL)) {
            say("send", outcome(() -> producer.send(message("story_tls", "safe").build())));
            say("receive", received(consumer, 1));
        }
    }

    private void acl() throws Exception {
        say("no credentials", guardedSend(configuration(guarded), "story_acl"));
        say("unknown user", guardedSend(as("nobody", "secret-of-alice"), "story_acl"));
        say("wrong secret", guardedSend(as("alice", "guessed"), "story_acl"));
        say("user without rights", guardedSend(as("bob", "secret-of-bob"), "story_acl"));
        say("topic without rights", guardedSend(as("alice", "secret-of-alice"), "story_plain"));
        say("send with the right to", guardedSend(as("alice", "secret-of-alice"), "story_acl"));
        say("receive without the right to", guardedReceive(as("bob", "secret-of-bob"), "g_acl"));
        say("receive with a group without rights", guardedReceive(as("alice", "secret-of-alice"), "g_other"));
        say("receive with the right to", guardedReceive(as("alice", "secret-of-alice"), "g_acl"));
        say("super user", guardedSend(as("root", "root-secret"), "story_plain_too"));
    }

    // ------------------------------------------------------------ steps

    private static String guardedSend(ClientConfiguration configuration, String topic) {
        return outcome(() -> {
            try (Producer producer = producer(configuration, topic)) {
                return producer.send(message(topic, "guarded").build());
            }
        });
    }

    private static String guardedReceive(ClientConfiguration configuration, String group) {
        return outcome(() -> {
            try (SimpleConsumer consumer = consumer(configuration, group, "story_acl", FilterExpression.SUB_ALL)) {
                List<MessageView> received = receive(consumer, 1, LONG_HELD);
                consumer.ack(received.get(0));
                return null;
            }
        });
    }

    private static String received(SimpleConsumer consumer, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        for (MessageView message : receive(consumer, count, LONG_HELD)) {
            bodies.add(body(message));
            consumer.ack(message);
        }
        Collections.sort(bodies);
        return String.join(" ", bodies);
    }

    /** Receive until there are so many messages, or for 90 seconds. */
    private static List<MessageView> receive(SimpleConsumer consumer, int count, Duration held) throws Exception {
        List<MessageView> received = new ArrayList<>();
        for (long end = deadline(90); received.size() < count && before(end);) {
            received.addAll(consumer.receive(Math.min(32, count - received.size()), held));
        }
        return received;
    }

    private void say(String step, String outcome) {
        lines.append(name).append(" | ").append(step).append(" | ").append(outcome).append('\n');
    }

    /** {@code OK}, the code of the reply, or where the client itself refused, its exception. */
    private static String outcome(Callable<?> step) {
        try {
            step.call();
            return "OK";
        } catch (Throwable error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                Matcher code = CODE.matcher(String.valueOf(cause.getMessage()));
                if (code.find()) {
                    return code.group(1);
                }
            }
            if (System.getenv("STORY_DEBUG") != null) {
                error.printStackTrace();
            }
            return "client: " + error.getClass().getSimpleName();
        }
    }

    private static Object ack(SimpleConsumer consumer, MessageView message) throws Exception {
        consumer.ack(message);
        return null;
    }

    private static Object change(SimpleConsumer consumer, MessageView message, Duration held) throws Exception {
        consumer.changeInvisibleDuration(message, held);
        return null;
    }

    private static String listed(List<MessageView> messages) {
        List<String> listed = new ArrayList<>();
        for (MessageView message : messages) {
            listed.add(body(message) + "/" + message.getDeliveryAttempt());
        }
        Collections.sort(listed);
        return listed.isEmpty() ? "nothing" : String.join(" ", listed);
    }

    private static List<String> bodies(List<String> seen) {
        List<String> bodies = new ArrayList<>();
        synchronized (seen) {
            for (String entry : seen) {
                bodies.add(entry.substring(0, entry.indexOf('/')));
            }
        }
        return bodies;
    }

    private static String of(List<String> seen, String body) {
        List<String> attempts = new ArrayList<>();
        synchronized (seen) {
            for (String entry : seen) {
                if (entry.startsWith(body + "/")) {
                    attempts.add(entry);
                }
            }
        }
        return String.join(" ", attempts);
    }

    private static void waitUntil(int seconds, BooleanSupplier condition) throws InterruptedException {
        for (long end = deadline(seconds); !condition.getAsBoolean() && before(end);) {
            Thread.sleep(100);
        }
    }

    private static long deadline(int seconds) {
        return System.nanoTime() + seconds * 1_000_000_000L;
    }

    private static boolean before(long deadline) {
        return System.nanoTime() < deadline;
    }

    // ------------------------------------------------------------ clients

    private static ClientConfigurationBuilder builder(String address) {
        return ClientConfiguration.newBuilder().setEndpoints(address).enableSsl(false).setMaxStartupAttempts(1)
            .setRequestTimeout(Duration.ofSeconds(20));
    }

    private static ClientConfiguration configuration(String address) {
        return builder(address).build();
    }

    private static ClientConfiguration as(String user, String secret) {
        return builder(guarded).setCredentialProvider(new StaticSessionCredentialsProvider(user, secret)).build();
    }

    private static Producer producer(String address, String... topics) throws Exception {
        return producer(configuration(address), topics);
    }

    private static Producer producer(ClientConfiguration configuration, String... topics) throws Exception {
        return SERVICE.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics).build();
    }

    private static SimpleConsumer consumer(String group, String topic, FilterExpression filter) throws Exception {
        return consumer(configuration(open), group, topic, filter);
    }

    private static SimpleConsumer consumer(
            ClientConfiguration configuration, String group, String topic, FilterExpression filter) throws Exception {
        return SERVICE.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(2)).setSubscriptionExpressions(Map.of(topic, filter)).build();
    }

    private static Closeable pushed(String group, String topic, String tags, MessageListener listener)
            throws Exception {
        return SERVICE.newPushConsumerBuilder().setClientConfiguration(configuration(open)).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, new FilterExpression(tags, FilterExpressionType.TAG)))
            .setMessageListener(listener).build();
    }

    private static MessageBuilder message(String topic, String body) {
        return SERVICE.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody().duplicate()).toString();
    }
}
