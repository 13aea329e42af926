// Members of kafkajs behind the line protocol of tests/compat/members/base.py.
"use strict";

process.env.KAFKAJS_NO_PARTITIONER_WARNING = "1";
const readline = require("readline");
const { Kafka, logLevel } = require("kafkajs");
const { version } = require("kafkajs/package.json");

const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50, retries: 8 } });
const admin = kafka.admin();
const members = {};

const assignedTo = (assignment) => Object.values(assignment).flat().map(Number).sort((a, b) => a - b);

async function join(call) {
  const consumer = kafka.consumer({
    groupId: call.group, sessionTimeout: call.session_timeout_ms, rebalanceTimeout: 10000, heartbeatInterval: 200,
    maxWaitTimeInMs: 50, allowAutoTopicCreation: false,
  });
  const member = { consumer, topic: call.topic, partitions: [], assignments: 0, revoked: [], records: [], error: "" };
  members[call.member] = member;
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    member.partitions = assignedTo(payload.memberAssignment);
    member.assignments += 1;
  });
  consumer.on(consumer.events.REBALANCING, () => {
    if (member.partitions.length) member.revoked.push(member.partitions);
    member.partitions = [];
  });
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    member.partitions = [];
    if (!payload.restart) member.error = String(payload.error); // else kafkajs begins anew by itself
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [call.topic], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => { member.records.push([partition, Number(message.offset)]); },
  });
}

const operations = {
  version: async () => { await admin.connect(); return version; },
  join: (call) => { join(call).catch((error) => { members[call.member].error = String(error); }); },
  look: ({ member }) => {
    const { partitions, assignments, revoked, records, error } = members[member];
    return { partitions, assignments, revoked, records, error };
  },
  commit: async ({ member, metadata }) => {
    const { consumer, topic, partitions, records } = members[member];
    const ends = {};
    for (const [partition, offset] of records) {
      if (partitions.includes(partition)) ends[partition] = Math.max(ends[partition] || 0, offset + 1);
    }
    await consumer.commitOffsets(Object.entries(ends).map(([partition, offset]) =>
      ({ topic, partition: Number(partition), offset: String(offset), metadata })));
  },
  leave: ({ member }) => members[member].consumer.disconnect(),
  abandon: () => { throw new Error("a member of kafkajs is killed with its program"); },
  list_groups: async () => {
    const { groups } = await admin.listGroups();
    return Object.fromEntries(groups.map(({ groupId }) => [groupId, ""]));
  },
  describe_group: async ({ group }) => {
    const { groups: [found] } = await admin.describeGroups([group]);
    const { AssignerProtocol: { MemberAssignment } } = require("kafkajs");
    const owned = found.members.map(({ memberAssignment }) => {
      const decoded = MemberAssignment.decode(memberAssignment); // null while the group is rebalanced
      return decoded === null ? [] : assignedTo(decoded.assignment);
    });
    return { state: found.state, members: owned.sort((a, b) => a[0] - b[0]) };
  },
  committed: async ({ group, topic }) => {
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
    const known = found.partitions.filter(({ offset }) => Number(offset) >= 0);
    return Object.fromEntries(known.map(({ partition, offset, metadata }) => [partition, [Number(offset), metadata || ""]]));
  },
  set_offsets: ({ group, topic, offsets }) => admin.setOffsets({
    groupId: group, topic, partitions: Object.entries(offsets).map(([partition, offset]) => ({ partition: Number(partition), offset: String(offset) })),
  }),
  delete_group: ({ group }) => admin.deleteGroups([group]),
};

function errorName(error) {
  for (let inner = error; inner; inner = inner.cause || inner.groups?.[0]?.error || inner.originalError) {
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
  process.exit(0);
}

main();
