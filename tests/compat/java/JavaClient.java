// Kafka's Java client behind the line protocol of tests/compat/drivers/program.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class JavaClient {
    static final int EARLIEST = -2;
    static final ObjectMapper JSON = new ObjectMapper();

    final String bootstrap;
    final Admin admin;
    final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();

    JavaClient(String bootstrap) {
        this.bootstrap = bootstrap;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
    }

    public static void main(String[] arguments) throws Exception {
        JavaClient client = new JavaClient(arguments[0]);
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> reply = new HashMap<>();
            try {
                reply.put("ok", client.run(JSON.readTree(line)));
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                reply.put("error", errorName(cause));
                reply.put("detail", String.valueOf(cause));
            }
            out.println(JSON.writeValueAsString(reply));
            out.flush();
        }
        client.producers.values().forEach(KafkaProducer::close);
        client.admin.close();
    }

    static String errorName(Throwable error) {
        if (error instanceof OffsetOutOfRangeException) return Errors.OFFSET_OUT_OF_RANGE.name(); // the consumer's own class
        Errors known = Errors.forException(error);
        return known == Errors.UNKNOWN_SERVER_ERROR ? error.getClass().getSimpleName() : known.name();
    }

    Object run(JsonNode call) throws Exception {
        String topic = call.path("topic").asText();
        switch (call.get("op").asText()) {
            case "version": return AppInfoParser.getVersion();
            case "create_topic": {
                NewTopic topicToCreate = new NewTopic(topic, call.get("partitions").asInt(), (short) call.get("replication_factor").asInt());
                admin.createTopics(List.of(topicToCreate.configs(strings(call.get("configs"))))).all().get();
                return null;
            }
            case "delete_topic": admin.deleteTopics(List.of(topic)).all().get(); return null;
            case "create_partitions":
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(call.get("total").asInt()))).all().get();
                return null;
            case "list_topics": return admin.listTopics().names().get();
            case "describe_topic": {
                TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
                Uuid id = described.topicId();
                UUID plain = new UUID(id.getMostSignificantBits(), id.getLeastSignificantBits());
                return Map.of("partitions", described.partitions().size(), "topic_id", plain.toString());
            }
            case "describe_cluster": return describeCluster();
            case "describe_configs": return describeConfigs(topic);
            case "alter_configs": return alterConfigs(topic, strings(call.get("configs")));
            case "produce": return produce(topic, call);
            case "consume": return consume(topic, call);
            case "offsets": {
                TopicPartition place = place(topic, call);
                return List.of(listOffset(place, OffsetSpec.earliest()), listOffset(place, OffsetSpec.latest()));
            }
            case "offset_for_time": {
                TopicPartition place = place(topic, call);
                try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
                    OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, call.get("timestamp").asLong())).get(place);
                    return found == null ? null : found.offset();
                }
            }
            case "delete_records":
                admin.deleteRecords(Map.of(place(topic, call), RecordsToDelete.beforeOffset(call.get("before").asLong()))).all().get();
                return null;
            default: throw new IllegalArgumentException(call.toString());
        }
    }

    long listOffset(TopicPartition place, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(place, spec)).partitionResult(place).get().offset();
    }

    Object describeCluster() throws Exception {
        DescribeClusterResult described = admin.describeCluster();
        List<Object> brokers = new ArrayList<>();
        for (Node node : described.nodes().get()) {
            brokers.add(Map.of("id", node.id(), "host", node.host(), "port", node.port()));
        }
        return Map.of("cluster_id", described.clusterId().get(), "controller_id", described.controller().get().id(), "brokers", brokers);
    }

    Object describeConfigs(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        List<Object> entries = new ArrayList<>();
        for (ConfigEntry entry : admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
            Map<String, Object> one = new HashMap<>();
            one.put("name", entry.name());
            one.put("value", entry.value());
            one.put("source", entry.source().name());
            entries.add(one);
        }
        return entries;
    }

    Object alterConfigs(String topic, Map<String, String> configs) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        configs.forEach((name, value) -> changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.TOPIC, topic), changes)).all().get();
        return null;
    }

    Object produce(String topic, JsonNode call) throws Exception {
        KafkaProducer<byte[], byte[]> producer = producer(call.get("codec").asText(), call.get("acks").asText(), call.get("idempotent").asBoolean());
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : call.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : record.get("headers")) headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
            Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
            sent.add(producer.send(new ProducerRecord<>(topic, call.get("partition").asInt(), timestamp, bytes(record.get("key")), bytes(record.get("value")), headers)));
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) offsets.add(one.get().offset());
        return offsets;
    }

    KafkaProducer<byte[], byte[]> producer(String codec, String acks, boolean idempotent) {
        return producers.computeIfAbsent(codec + acks + idempotent, key -> new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrap, "compression.type", codec, "acks", acks, "enable.idempotence", idempotent,
                "linger.ms", 20, "max.block.ms", 15000, "delivery.timeout.ms", 20000, "request.timeout.ms", 15000),
            new ByteArraySerializer(), new ByteArraySerializer()));
    }

    Object consume(String topic, JsonNode call) {
        TopicPartition place = place(topic, call);
        long deadline = System.currentTimeMillis() + call.get("wait_ms").asLong();
        int count = call.get("count").asInt();
        List<Object> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(place));
            long offset = call.get("offset").asLong();
            if (offset == EARLIEST) consumer.seekToBeginning(List.of(place));
            else consumer.seek(place, offset);
            while (records.size() < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (records.size() < count) records.add(asJson(record));
                }
            }
        }
        return records;
    }

    KafkaConsumer<byte[], byte[]> consumer() {
        return new KafkaConsumer<>(Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "none", "enable.auto.commit", false),
            new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Map<String, Object> asJson(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> result = new HashMap<>();
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) headers.add(Arrays.asList(header.key(), base64(header.value())));
        result.put("key", base64(record.key()));
        result.put("value", base64(record.value()));
        result.put("headers", headers);
        result.put("timestamp", record.timestamp());
        result.put("offset", record.offset());
        return result;
    }

    static TopicPartition place(String topic, JsonNode call) {
        return new TopicPartition(topic, call.get("partition").asInt());
    }

    static Map<String, String> strings(JsonNode node) {
        Map<String, String> result = new HashMap<>();
        node.fields().forEachRemaining(field -> result.put(field.getKey(), field.getValue().asText()));
        return result;
    }

    static byte[] bytes(JsonNode node) {
        return node.isNull() ? null : Base64.getDecoder().decode(node.asText());
    }

    static String base64(byte[] value) {
        return value == null ? null : Base64.getEncoder().encodeToString(value);
    }
}
