// kafkajs behind the line protocol of tests/compat/drivers/program.py.
"use strict";

process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
const readline = require("readline");
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require("kafkajs");
const { version } = require("kafkajs/package.json");
const SnappyCodec = require("kafkajs-snappy");
const lz4 = require("lz4-napi");
const zstd = require("@bokuweb/zstd-wasm");

// kafkajs brings gzip; the other codecs are plugged in, as its documentation says.
CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
});
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
});
const CODECS = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4, zstd: CompressionTypes.ZSTD,
};

const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING, retry: { retries: 3 } });
const admin = kafka.admin();
const producers = {};

async function producer(idempotent) {
  if (!producers[idempotent]) {
    producers[idempotent] = kafka.producer({ idempotent, maxInFlightRequests: 1 });
    await producers[idempotent].connect();
  }
  return producers[idempotent];
}

const bytes = (text) => (text === null ? null : Buffer.from(text, "base64"));

function message(record, partition) {
  const headers = {};
  for (const [name, value] of record.headers) (headers[name] ||= []).push(bytes(value));
  const result = { key: bytes(record.key), value: bytes(record.value), headers, partition };
  if (record.timestamp !== null) result.timestamp = String(record.timestamp);
  return result;
}

const topicResource = (topic) => ({ type: ConfigResourceTypes.TOPIC, name: topic });

const operations = {
  version: async () => { await zstd.init(); await admin.connect(); return version; },
  create_topic: (call) => admin.createTopics({
    topics: [{
      topic: call.topic, numPartitions: call.partitions, replicationFactor: call.replication_factor,
      configEntries: Object.entries(call.configs).map(([name, value]) => ({ name, value })),
    }],
  }).then((created) => { if (!created) throw { type: "TOPIC_ALREADY_EXISTS", message: "createTopics gave false" }; }),
  delete_topic: (call) => admin.deleteTopics({ topics: [call.topic] }),
  create_partitions: (call) => admin.createPartitions({ topicPartitions: [{ topic: call.topic, count: call.total }] }),
  list_topics: () => admin.listTopics(),
  describe_topic: async (call) => {
    const { topics: [topic] } = await admin.fetchTopicMetadata({ topics: [call.topic] });
    return { partitions: topic.partitions.length };
  },
  describe_cluster: async () => {
    const { clusterId, controller, brokers } = await admin.describeCluster();
    const nodes = brokers.map(({ nodeId, host, port }) => ({ id: nodeId, host, port }));
    return { cluster_id: clusterId, controller_id: controller, brokers: nodes };
  },
  describe_configs: async (call) => {
    const { resources: [resource] } = await admin.describeConfigs({ resources: [topicResource(call.topic)] });
    return resource.configEntries.map(({ configName, configValue, configSource }) =>
      ({ name: configName, value: configValue, source: configSource }));
  },
  alter_configs: async (call) => {
    const configEntries = Object.entries(call.configs).map(([name, value]) => ({ name, value }));
    await admin.alterConfigs({ resources: [{ ...topicResource(call.topic), configEntries }] });
  },
  produce: async (call) => {
    const results = await (await producer(call.idempotent)).send({
      topic: call.topic, acks: call.acks === "all" ? -1 : Number(call.acks), compression: CODECS[call.codec],
      messages: call.records.map((record) => message(record, call.partition)),
    });
    return results.length ? call.records.map((_, i) => Number(results[0].baseOffset) + i) : [];
  },
  offsets: async (call) => {
    const all = await admin.fetchTopicOffsets(call.topic);
    const { low, high } = all.find(({ partition }) => partition === call.partition);
    return [Number(low), Number(high)];
  },
  offset_for_time: async (call) => {
    const all = await admin.fetchTopicOffsetsByTimestamp(call.topic, call.timestamp);
    const { offset } = all.find(({ partition }) => partition === call.partition);
    // Past the last record kafkajs gives the end of the log, where other clients give nothing.
    return Number(offset) === (await operations.offsets(call))[1] ? null : Number(offset);
  },
  delete_records: async (call) => {
    await admin.fetchTopicOffsets(call.topic); // kafkajs finds leaders only of topics that it has asked about
    const partitions = [{ partition: call.partition, offset: String(call.before) }];
    await admin.deleteTopicRecords({ topic: call.topic, partitions });
  },
};

/** kafkajs wraps the broker's error in an aggregate or in "retries exceeded"; the name is inside. */
function errorName(error) {
  for (let inner = error; inner; inner = inner.cause || inner.errors?.[0] || inner.partitions?.[0]?.error || inner.originalError) {
    if (inner.type) return inner.type;
  }
  return error.name || "ERROR";
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    const call = JSON.parse(line);
    let reply;
    try {
      reply = { ok: (await operations[call.op](call)) ?? null };
    } catch (error) {
      reply = { error: errorName(error), detail: String(error.stack || error.message) };
    }
    process.stdout.write(JSON.stringify(reply) + "\n");
  }
  for (const one of Object.values(producers)) await one.disconnect();
  await admin.disconnect();
}

main();
