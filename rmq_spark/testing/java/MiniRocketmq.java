import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.proxy.ProxyStartup;
import org.apache.rocketmq.remoting.common.TlsMode;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * RocketMQ 5.5.0 on loopback ports: a nameserver with a broker, or a proxy.
 *
 * <p>Usage: {@code java -cp JARS MiniRocketmq.java broker DIRECTORY NAMESERVER_PORT BROKER_PORT}, or {@code proxy
 * DIRECTORY NAMESERVER_PORT PROXY_PORT} with the configuration {@code DIRECTORY/rmq-proxy.json}. Prints {@code READY
 * 127.0.0.1:PORT}. The broker then takes commands, a line each, and answers each with {@code DONE} or {@code FAILED
 * reason}: {@code topic NAME QUEUES TYPE}, {@code group NAME ORDERLY RETRIES}, {@code user NAME SECRET TYPE}, {@code
 * acl SUBJECT RESOURCE ACTION DECISION}. It ends when its standard input closes.
 */
public final class MiniRocketmq {
    private static DefaultMQAdminExt admin;

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Thread starter = new Thread(() -> start(arguments), "start");
        starter.start();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            starter.join();
            System.out.println("\n" + answer(line.split(" "), "127.0.0.1:" + arguments[3]));
            System.out.flush();
        }
        // The data is thrown away with the test, so nothing needs an orderly end.
        Runtime.getRuntime().halt(0);
    }

    private static void start(String[] arguments) {
        String nameserver = "127.0.0.1:" + arguments[2];
        Path home = Path.of(arguments[1]);
        try {
            if (arguments[0].equals("proxy")) {
                // The port for the older protocol wants a native library for TLS, which nobody needs here; the port for
                // gRPC brings its own, and looks at this setting when a client connects.
                TlsSystemConfig.tlsMode = TlsMode.DISABLED;
                ProxyStartup.main(new String[] {
                    "-pm", "cluster", "-n", nameserver, "-pc", home.resolve("rmq-proxy.json").toString()});
                TlsSystemConfig.tlsMode = TlsMode.PERMISSIVE;
            } else {
                broker(home, arguments[2], arguments[3]);
            }
            System.out.println("\nREADY 127.0.0.1:" + arguments[3]);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void broker(Path home, String namesrvPort, String brokerPort) throws Exception {
        Path names = home.resolve("namesrv.conf");
        Files.writeString(names, "listenPort=" + namesrvPort + "\n");
        NamesrvStartup.main0(new String[] {"-c", names.toString()});
        String nameserver = "127.0.0.1:" + namesrvPort;
        BrokerStartup.main(new String[] {"-c", home.resolve("broker.conf").toString(), "-n", nameserver});
        admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(nameserver);
        admin.start();
    }

    private static String answer(String[] words, String broker) {
        try {
            switch (words[0]) {
                case "topic": {
                    int queues = Integer.parseInt(words[2]);
                    TopicConfig topic = new TopicConfig(words[1], queues, queues);
                    topic.setAttributes(Map.of("+message.type", words[3]));
                    admin.createAndUpdateTopicConfig(broker, topic);
                    break;
                }
                case "group": {
                    SubscriptionGroupConfig group = new SubscriptionGroupConfig();
                    group.setGroupName(words[1]);
                    group.setConsumeMessageOrderly(Boolean.parseBoolean(words[2]));
                    group.setRetryMaxTimes(Integer.parseInt(words[3]));
                    admin.createAndUpdateSubscriptionGroupConfig(broker, group);
                    break;
                }
                case "user":
                    admin.createUser(broker, words[1], words[2], words[3]);
                    break;
                case "acl":
                    admin.createAcl(
                        broker, words[1], List.of(words[2]), List.of(words[3].split(",")), null, words[4]);
                    break;
                default:
                    return "FAILED unknown command " + words[0];
            }
            return "DONE";
        } catch (Exception error) {
            return "FAILED " + error;
        }
    }

    private MiniRocketmq() {}
}
