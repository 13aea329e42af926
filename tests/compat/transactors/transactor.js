// Transactional producers of kafkajs behind the line protocol of tests/compat/transactors/base.py.
"use strict";

process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
const readline = require("readline");
const { Kafka, logLevel } = require("kafkajs");
const { version } = require("kafkajs/package.json");

const LAST = "the last one";
const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING, retry: { retries: 3 } });
const producers = {};
const transactions = {};

const operations = {
  version: async () => version,
  init: async (call) => {
    // kafkajs asks for its producer id when it connects.
    const producer = kafka.producer({
      transactionalId: call.transactional_id, transactionTimeout: call.timeout_ms, idempotent: true, maxInFlightRequests: 1,
    });
    await producer.connect();
    producers[call.producer] = producer;
    const first = await producer.transaction();
    await first.abort();
  },
  begin: async (call) => { transactions[call.producer] = await producers[call.producer].transaction(); },
  send: async (call) => {
    const messages = call.values.map((value) => ({ value, partition: call.partition }));
    await transactions[call.producer].send({ topic: call.topic, messages, acks: -1 });
  },
  offsets: (call) => transactions[call.producer].sendOffsets({
    consumerGroupId: call.group,
    topics: [{ topic: call.topic, partitions: [{ partition: 0, offset: String(call.offset) }] }],
  }),
  end: (call) => (call.commit ? transactions[call.producer].commit() : transactions[call.producer].abort()),
  read: async (call) => {
    const consumer = kafka.consumer({
      groupId: `reader-${Math.random()}`, readUncommitted: !call.committed, maxWaitTimeInMs: 100,
    });
    await consumer.connect();
    await consumer.subscribe({ topics: [call.topic], fromBeginning: true });
    const found = Array.from({ length: call.partitions }, () => []);
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error(`only ${JSON.stringify(found)} came`)), 20000).unref();
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          found[partition].push(message.value.toString());
          if (found.every((values) => values.length && values[values.length - 1] === LAST)) resolve();
        },
      });
    });
    await consumer.disconnect();
    return found;
  },
};

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const call = JSON.parse(line);
    let reply;
    try {
      reply = { ok: (await operations[call.op](call)) ?? null };
    } catch (error) {
      const cause = error.cause && error.cause.type ? error.cause : error;
      reply = { error: cause.type || error.name || String(error), detail: String(error.message || error) };
    }
    process.stdout.write(`${JSON.stringify(reply)}\n`);
  }
  process.exit(0);
})();
