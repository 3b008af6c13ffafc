import java.io.File;
import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * One NameNode and one DataNode in one process, on free loopback ports.
 *
 * <p>Usage: {@code java -cp JARS MiniHdfs.java DIRECTORY}. Prints {@code READY hdfs://127.0.0.1:PORT} when files can be
 * written, and ends when its standard input closes, so it never outlives the test that started it.
 */
public final class MiniHdfs {
    private static final long START_LIMIT_MS = 60_000;

    private MiniHdfs() {}

    public static void main(String[] arguments) throws Exception {
        // From the start, so that no server stays behind when the test dies while this one is starting.
        Thread watch = new Thread(MiniHdfs::endWithInput, "watch-input");
        watch.setDaemon(true);
        watch.start();
        File root = new File(arguments[0]);
        Configuration conf = configuration(root);
        // Both daemons register metrics under the same names; without this the second one refuses.
        DefaultMetricsSystem.setMiniClusterMode(true);
        NameNode.format(conf);
        NameNode nameNode = NameNode.createNameNode(new String[0], conf);
        FileSystem.setDefaultUri(conf, "hdfs://127.0.0.1:" + nameNode.getNameNodeAddress().getPort());
        DataNode.createDataNode(new String[0], conf);
        awaitWritable(conf);
        System.out.println("READY " + FileSystem.getDefaultUri(conf));
        System.out.flush();
        nameNode.join();
    }

    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                // Nothing is ever sent; the end of the stream is the sign to stop.
            }
        } catch (IOException closed) {
            System.err.println("input failed, ending: " + closed);
        }
        // The data is thrown away with the test, so nothing needs an orderly end.
        Runtime.getRuntime().halt(0);
    }

    private static Configuration configuration(File root) {
        Configuration conf = new Configuration();
        FileSystem.setDefaultUri(conf, "hdfs://127.0.0.1:0");
        conf.set("dfs.namenode.name.dir", new File(root, "name").toURI().toString());
        conf.set("dfs.datanode.data.dir", new File(root, "data").toURI().toString());
        conf.set("dfs.namenode.http-address", "127.0.0.1:0");
        conf.set("dfs.datanode.address", "127.0.0.1:0");
        conf.set("dfs.datanode.http.address", "127.0.0.1:0");
        conf.set("dfs.datanode.ipc.address", "127.0.0.1:0");
        conf.set("dfs.datanode.hostname", "127.0.0.1");
        conf.setInt("dfs.replication", 1);
        conf.setInt("dfs.namenode.fs-limits.min-block-size", 0);
        return conf;
    }

    private static void awaitWritable(Configuration conf) throws IOException, InterruptedException {
        long deadline = System.currentTimeMillis() + START_LIMIT_MS;
        try (DistributedFileSystem files = (DistributedFileSystem) new Path("/").getFileSystem(conf)) {
            while (files.setSafeMode(org.apache.hadoop.fs.SafeModeAction.GET)
                    || files.getDataNodeStats(HdfsConstants.DatanodeReportType.LIVE).length == 0) {
                if (System.currentTimeMillis() > deadline) {
                    throw new IOException("no live DataNode after " + START_LIMIT_MS + " ms");
                }
                Thread.sleep(50);
            }
            // Tests come as whatever user runs them.
            files.setPermission(new Path("/"), new org.apache.hadoop.fs.permission.FsPermission((short) 0777));
        }
    }
}
