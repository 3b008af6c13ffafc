import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Time;

/**
 * A Kafka broker and controller (KRaft) in one process, on given loopback ports.
 *
 * <p>Usage: {@code java -cp JARS MiniKafka.java DIRECTORY BROKER_PORT CONTROLLER_PORT}. Prints {@code READY
 * 127.0.0.1:PORT} when it serves, then takes commands, a line each, and answers each with {@code DONE} or {@code
 * FAILED reason}: {@code create TOPIC PARTITIONS}, {@code delete TOPIC}, {@code feed TOPIC RATE BYTES} (send messages at
 * a steady rate until the next command), {@code rest}. It ends when its standard input closes, so it never outlives
 * the test that started it.
 */
public final class MiniKafka {
    private static final int FEEDS_A_SECOND = 50;

    private final Admin admin;
    private final Map<String, Object> client;
    private AtomicBoolean feeding = new AtomicBoolean();

    private MiniKafka(String address) {
        client = Map.of("bootstrap.servers", address);
        admin = Admin.create(client);
    }

    public static void main(String[] arguments) throws Exception {
        // Commands are read from the start, so that no broker stays behind when the test dies while it is starting.
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Thread starter = new Thread(() -> start(arguments), "start");
        starter.start();
        MiniKafka served = null;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            starter.join();
            served = served == null ? new MiniKafka("127.0.0.1:" + arguments[1]) : served;
            System.out.println(served.answer(line.split(" ")));
            System.out.flush();
        }
        // The data is thrown away with the test, so nothing needs an orderly end.
        Runtime.getRuntime().halt(0);
    }

    private static void start(String[] arguments) {
        try {
            Path root = Path.of(arguments[0]);
            Properties settings = settings(root, arguments[1], arguments[2]);
            Path file = root.resolve("server.properties");
            try (var output = Files.newOutputStream(file)) {
                settings.store(output, null);
            }
            String[] format = {"format", "-t", Uuid.randomUuid().toString(), "-c", file.toString()};
            if (StorageTool.execute(format, new PrintStream(System.err)) != 0) {
                throw new IOException("the storage could not be formatted");
            }
            new KafkaRaftServer(new KafkaConfig(settings), Time.SYSTEM).startup();
            System.out.println("READY 127.0.0.1:" + arguments[1]);
            System.out.flush();
        } catch (Throwable failed) {
            failed.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static Properties settings(Path root, String broker, String controller) {
        Properties settings = new Properties();
        settings.put("process.roles", "broker,controller");
        settings.put("node.id", "1");
        settings.put("controller.quorum.voters", "1@127.0.0.1:" + controller);
        settings.put("listeners", "PLAINTEXT://127.0.0.1:" + broker + ",CONTROLLER://127.0.0.1:" + controller);
        settings.put("advertised.listeners", "PLAINTEXT://127.0.0.1:" + broker);
        settings.put("controller.listener.names", "CONTROLLER");
        settings.put("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT");
        settings.put("log.dirs", root.resolve("logs").toString());
        settings.put("offsets.topic.replication.factor", "1");
        settings.put("transaction.state.log.replication.factor", "1");
        settings.put("transaction.state.log.min.isr", "1");
        settings.put("group.initial.rebalance.delay.ms", "0");
        settings.put("auto.create.topics.enable", "false");
        settings.put("log.segment.delete.delay.ms", "1000");
        return settings;
    }

    private String answer(String[] words) {
        feeding.set(false);
        try {
            switch (words[0]) {
                case "create" -> {
                    NewTopic topic = new NewTopic(words[1], Integer.parseInt(words[2]), (short) 1);
                    admin.createTopics(List.of(topic)).all().get();
                }
                case "delete" -> admin.deleteTopics(List.of(words[1])).all().get();
                case "feed" -> feed(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
                case "rest" -> { }
                default -> throw new IllegalArgumentException("no such command: " + words[0]);
            }
            return "DONE";
        } catch (Exception failed) {
            return "FAILED " + failed.toString().replace('\n', ' ');
        }
    }

    private void feed(String topic, int rate, int size) {
        AtomicBoolean goesOn = new AtomicBoolean(true);
        feeding = goesOn;
        Thread feeder = new Thread(() -> sendUntilStopped(topic, rate, size, goesOn), "feed");
        feeder.setDaemon(true);
        feeder.start();
    }

    private void sendUntilStopped(String topic, int rate, int size, AtomicBoolean goesOn) {
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(client, bytes, bytes)) {
            long begun = System.nanoTime();
            for (long sent = 0; goesOn.get(); ) {
                long due = (System.nanoTime() - begun) * rate / 1_000_000_000L;
                for (; sent < due; sent++) {
                    byte[] key = ("order-" + sent).getBytes(StandardCharsets.UTF_8);
                    producer.send(new ProducerRecord<>(topic, key, new byte[size]));
                }
                producer.flush();
                Thread.sleep(1_000 / FEEDS_A_SECOND);
            }
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }
}
