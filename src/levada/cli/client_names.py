"""Names of settings of Kafka's clients, of Java and librdkafka, that no command of Levada uses."""

_UNUSED = """
    allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.include.jmx.reporter batch.num.messages bootstrap.controllers broker.address.family broker.address.ttl
    broker.version.fallback builtin.features check.crcs client.dns.lookup client.rack compression.gzip.level
    compression.level compression.lz4.level compression.zstd.level config.providers connections.max.idle.ms
    consume.callback.max.messages coordinator.query.interval.ms debug default.api.timeout.ms
    delivery.report.only.error enable.auto.offset.store enable.gapless.guarantee enable.metrics.push
    enable.partition.eof enable.random.seed exclude.internal.topics fetch.error.backoff.ms fetch.queue.backoff.ms
    group.protocol group.protocol.type group.remote.assignor heartbeat.interval.ms interceptor.classes
    internal.leave.group.on.close internal.termination.signal internal.throw.on.fetch.stable.offset.unsupported
    key.deserializer key.serializer log.connection.close log.queue log.thread.name log_level max.block.ms
    max.poll.records max.request.size message.copy.max.bytes message.max.bytes message.send.max.retries
    metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms offset.store.method offset.store.path
    offset.store.sync.interval.ms partition.assignment.strategy partitioner
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys plugin.library.paths produce.offset.report queue.buffering.backpressure.threshold
    queue.buffering.max.kbytes queue.buffering.max.messages queued.max.messages.kbytes queued.min.messages
    queuing.strategy receive.buffer.bytes receive.message.max.bytes reconnect.backoff.jitter.ms
    reconnect.backoff.max.ms reconnect.backoff.ms retries retry.backoff.max.ms send.buffer.bytes
    session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.max.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms statistics.interval.ms sticky.partitioning.linger.ms
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    transaction.timeout.ms transactional.id value.deserializer value.serializer
"""
UNUSED = frozenset(_UNUSED.split())
# Settings of serializers, and of plugins of other products.
UNUSED_PREFIXES = ("basic.auth.", "config.providers.", "confluent.", "schema.registry.")
# librdkafka's own names of settings that have another name in Java.
ALIASES = {
    "auto.commit.enable": "enable.auto.commit",
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
}
