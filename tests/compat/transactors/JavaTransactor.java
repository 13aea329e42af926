// Transactional producers of Kafka's Java client behind the line protocol of tests/compat/transactors/base.py.

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
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class JavaTransactor {
    static final String LAST = "the last one";
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    static final Map<String, ConsumerGroupMetadata> members = new HashMap<>(); // by group: who commits its offsets
    static final List<KafkaConsumer<String, String>> living = new ArrayList<>();
    static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> reply = new HashMap<>();
            try {
                reply.put("ok", run(JSON.readTree(line)));
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                Errors known = Errors.forException(cause);
                reply.put("error", known == Errors.UNKNOWN_SERVER_ERROR ? cause.getClass().getSimpleName() : known.name());
                reply.put("detail", String.valueOf(cause));
            }
            out.println(JSON.writeValueAsString(reply));
            out.flush();
        }
        Runtime.getRuntime().halt(0); // open transactions stay open
    }

    static Object run(JsonNode call) throws Exception {
        KafkaProducer<String, String> producer = producers.get(call.path("producer").asText());
        switch (call.get("op").asText()) {
            case "version": return AppInfoParser.getVersion();
            case "init": {
                producer = new KafkaProducer<>(
                    Map.of("bootstrap.servers", bootstrap, "transactional.id", call.get("transactional_id").asText(),
                        "transaction.timeout.ms", call.get("timeout_ms").asInt(), "max.block.ms", 20000,
                        "delivery.timeout.ms", 20000, "request.timeout.ms", 15000, "linger.ms", 0),
                    new StringSerializer(), new StringSerializer());
                producers.put(call.get("producer").asText(), producer);
                producer.initTransactions();
                return null;
            }
            case "begin": producer.beginTransaction(); return null;
            case "send": {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (JsonNode value : call.get("values")) {
                    sent.add(producer.send(new ProducerRecord<>(call.get("topic").asText(), call.get("partition").asInt(), null, value.asText())));
                }
                for (Future<RecordMetadata> one : sent) one.get();
                return null;
            }
            case "offsets": {
                Map<TopicPartition, OffsetAndMetadata> offsets =
                    Map.of(new TopicPartition(call.get("topic").asText(), 0), new OffsetAndMetadata(call.get("offset").asLong()));
                String group = call.get("group").asText();
                producer.sendOffsetsToTransaction(offsets, members.getOrDefault(group, new ConsumerGroupMetadata(group)));
                return null;
            }
            case "join": join(call.get("group").asText(), call.get("topic").asText()); return null;
            case "list_transactions": case "describe_transaction": case "abort_in": {
                try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
                    return administrate(admin, call);
                }
            }
            case "end":
                if (call.get("commit").asBoolean()) producer.commitTransaction();
                else producer.abortTransaction();
                return null;
            case "read": return read(call.get("topic").asText(), call.get("partitions").asInt(), call.get("committed").asBoolean());
            default: throw new IllegalArgumentException(call.toString());
        }
    }

    static void join(String group, String topic) {
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrap, "group.id", group, "enable.auto.commit", false),
            new StringDeserializer(), new StringDeserializer());
        living.add(consumer);
        consumer.subscribe(List.of(topic));
        long deadline = System.currentTimeMillis() + 20000;
        while (consumer.assignment().isEmpty()) {
            if (System.currentTimeMillis() > deadline) throw new IllegalStateException("no assignment");
            consumer.poll(Duration.ofMillis(100));
        }
        members.put(group, consumer.groupMetadata());
    }

    static Object administrate(Admin admin, JsonNode call) throws Exception {
        switch (call.get("op").asText()) {
            case "list_transactions": {
                Map<String, String> found = new HashMap<>();
                for (TransactionListing one : admin.listTransactions().all().get()) found.put(one.transactionalId(), one.state().toString());
                return found;
            }
            case "describe_transaction": {
                String id = call.get("transactional_id").asText();
                TransactionDescription found = admin.describeTransactions(List.of(id)).all().get().get(id);
                List<String> places = found.topicPartitions().stream().map(TopicPartition::toString).sorted().toList();
                return Map.of("state", found.state().toString(), "partitions", places);
            }
            default: {
                TopicPartition place = new TopicPartition(call.get("topic").asText(), 0);
                for (ProducerState one : admin.describeProducers(List.of(place)).all().get().get(place).activeProducers()) {
                    if (one.currentTransactionStartOffset().isEmpty()) continue;
                    admin.abortTransaction(new AbortTransactionSpec(place, one.producerId(), (short) one.producerEpoch(),
                        one.coordinatorEpoch().orElse(0))).all().get();
                }
                return null;
            }
        }
    }

    static Object read(String topic, int partitions, boolean committed) {
        List<List<String>> found = new ArrayList<>();
        List<TopicPartition> places = new ArrayList<>();
        for (int number = 0; number < partitions; number++) {
            found.add(new ArrayList<>());
            places.add(new TopicPartition(topic, number));
        }
        long deadline = System.currentTimeMillis() + 20000;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
                Map.of("bootstrap.servers", bootstrap, "isolation.level", committed ? "read_committed" : "read_uncommitted",
                    "auto.offset.reset", "earliest", "enable.auto.commit", false),
                new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(places);
            while (!found.stream().allMatch(values -> !values.isEmpty() && values.get(values.size() - 1).equals(LAST))) {
                if (System.currentTimeMillis() > deadline) throw new IllegalStateException("only " + found + " came");
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    found.get(record.partition()).add(record.value());
                }
            }
        }
        return found;
    }
}
