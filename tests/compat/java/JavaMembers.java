// Members of Kafka's Java client behind the line protocol of tests/compat/members/base.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class JavaMembers {
    static final ObjectMapper JSON = new ObjectMapper();
    static String bootstrap;

    /** A consumer on its thread; what it is asked runs between two polls. */
    static class Member extends Thread implements ConsumerRebalanceListener {
        final JsonNode call;
        final String topic;
        final BlockingQueue<FutureTask<Void>> asked = new LinkedBlockingQueue<>();
        final Set<Integer> partitions = new TreeSet<>();
        final List<List<Integer>> revoked = new ArrayList<>();
        final List<List<Long>> records = new ArrayList<>();
        int assignments = 0;
        volatile boolean running = true;
        volatile String error = "";
        KafkaConsumer<byte[], byte[]> consumer;

        Member(JsonNode call) {
            this.call = call;
            this.topic = call.get("topic").asText();
            setDaemon(true);
        }

        Map<String, Object> settings() {
            Map<String, Object> settings = new HashMap<>(Map.of(
                "bootstrap.servers", bootstrap, "group.id", call.get("group").asText(), "auto.offset.reset", "earliest",
                "enable.auto.commit", "false", "metadata.max.age.ms", "2000",
                "key.deserializer", ByteArrayDeserializer.class.getName(), "value.deserializer", ByteArrayDeserializer.class.getName()));
            if (call.path("protocol").asText().equals("consumer")) {
                settings.put("group.protocol", "consumer");
                if (call.hasNonNull("remote_assignor")) settings.put("group.remote.assignor", call.get("remote_assignor").asText());
            } else {
                settings.put("session.timeout.ms", call.get("session_timeout_ms").asInt());
                settings.put("heartbeat.interval.ms", 200);
                settings.put("partition.assignment.strategy", call.get("assignor").asText().equals("range")
                    ? RangeAssignor.class.getName() : CooperativeStickyAssignor.class.getName());
            }
            if (call.hasNonNull("instance_id")) settings.put("group.instance.id", call.get("instance_id").asText());
            return settings;
        }

        @Override public void run() {
            try {
                consumer = new KafkaConsumer<>(settings());
                if (call.hasNonNull("pattern")) consumer.subscribe(new SubscriptionPattern(call.get("pattern").asText()), this);
                else consumer.subscribe(List.of(topic), this);
                while (running) {
                    ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(50));
                    synchronized (this) {
                        for (ConsumerRecord<byte[], byte[]> record : polled) records.add(List.of((long) record.partition(), record.offset()));
                    }
                    for (FutureTask<Void> task = asked.poll(); task != null; task = asked.poll()) task.run();
                }
            } catch (Throwable failure) {
                error = String.valueOf(failure);
            }
        }

        void ask(Callable<Void> what) throws Exception {
            FutureTask<Void> task = new FutureTask<>(what);
            asked.add(task);
            task.get(20, TimeUnit.SECONDS);
        }

        Void commit(String metadata) {
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            for (List<Long> record : records) {
                TopicPartition place = new TopicPartition(topic, record.get(0).intValue());
                if (partitions.contains(place.partition())) positions.put(place, new OffsetAndMetadata(record.get(1) + 1, metadata));
            }
            consumer.commitSync(positions);
            return null;
        }

        Void leave() {
            running = false;
            consumer.close();
            return null;
        }

        static List<Integer> numbers(Collection<TopicPartition> places) {
            return places.stream().map(TopicPartition::partition).sorted().toList();
        }

        @Override public synchronized void onPartitionsAssigned(Collection<TopicPartition> places) {
            assignments++;
            partitions.addAll(numbers(places));
        }

        @Override public synchronized void onPartitionsRevoked(Collection<TopicPartition> places) {
            if (!places.isEmpty()) revoked.add(numbers(places));
            partitions.removeAll(numbers(places));
        }

        synchronized Object look() {
            return Map.of("partitions", List.copyOf(partitions), "assignments", assignments, "revoked", List.copyOf(revoked),
                "records", List.copyOf(records), "error", error);
        }
    }

    static final Map<String, Member> members = new HashMap<>();

    static Object run(Admin admin, JsonNode call) throws Exception {
        String group = call.path("group").asText();
        Member member = members.get(call.path("member").asText());
        switch (call.get("op").asText()) {
            case "version": return AppInfoParser.getVersion();
            case "join": {
                Member joining = new Member(call);
                members.put(call.get("member").asText(), joining);
                joining.start();
                return null;
            }
            case "look": return member.look();
            case "commit": member.ask(() -> member.commit(call.get("metadata").asText())); return null;
            case "leave": member.ask(member::leave); return null;
            case "list_groups": {
                Map<String, String> found = new HashMap<>();
                for (GroupListing listed : admin.listGroups().all().get()) found.put(listed.groupId(), listed.groupState().get().toString());
                return found;
            }
            case "describe_group": {
                ConsumerGroupDescription described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                List<List<Integer>> owned = new ArrayList<>();
                for (MemberDescription one : described.members()) owned.add(Member.numbers(one.assignment().topicPartitions()));
                owned.sort(Comparator.comparing(Object::toString));
                return Map.of("state", described.groupState().toString(), "members", owned);
            }
            case "committed": {
                Map<String, Object> found = new HashMap<>();
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((place, offset) -> {
                    if (offset != null) found.put(String.valueOf(place.partition()), List.of(offset.offset(), offset.metadata()));
                });
                return found;
            }
            case "set_offsets": {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                call.get("offsets").properties().forEach(entry -> offsets.put(
                    new TopicPartition(call.get("topic").asText(), Integer.parseInt(entry.getKey())), new OffsetAndMetadata(entry.getValue().asLong())));
                admin.alterConsumerGroupOffsets(group, offsets).all().get();
                return null;
            }
            case "delete_group": admin.deleteConsumerGroups(List.of(group)).all().get(); return null;
            case "delete_offsets": {
                TopicPartition place = new TopicPartition(call.get("topic").asText(), call.get("partition").asInt());
                admin.deleteConsumerGroupOffsets(group, Set.of(place)).all().get();
                return null;
            }
            case "remove_member": {
                MemberToRemove gone = new MemberToRemove(call.get("instance_id").asText());
                admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(List.of(gone))).all().get();
                return null;
            }
            default: throw new IllegalArgumentException(call.toString());
        }
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> reply = new HashMap<>();
            try {
                reply.put("ok", run(admin, JSON.readTree(line)));
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                Errors known = Errors.forException(cause);
                reply.put("error", known == Errors.UNKNOWN_SERVER_ERROR ? cause.getClass().getSimpleName() : known.name());
                reply.put("detail", String.valueOf(cause));
            }
            out.println(JSON.writeValueAsString(reply));
            out.flush();
        }
        Runtime.getRuntime().halt(0); // members that were abandoned shall not say goodbye
    }
}
