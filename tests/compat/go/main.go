// franz-go behind the line protocol of tests/compat/drivers/program.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const earliest = -2

type record struct {
	Value     []byte   `json:"value"` // encoding/json writes bytes as base64 and nil as null
	Key       []byte   `json:"key"`
	Headers   [][2]any `json:"headers"`
	Timestamp *int64   `json:"timestamp"`
	Offset    int64    `json:"offset"`
}

type call struct {
	Op                string            `json:"op"`
	Topic             string            `json:"topic"`
	Partition         int32             `json:"partition"`
	Partitions        int32             `json:"partitions"`
	ReplicationFactor int16             `json:"replication_factor"`
	Configs           map[string]string `json:"configs"`
	Total             int               `json:"total"`
	Records           []record          `json:"records"`
	Codec             string            `json:"codec"`
	Acks              string            `json:"acks"`
	Idempotent        bool              `json:"idempotent"`
	Count             int               `json:"count"`
	Offset            int64             `json:"offset"`
	WaitMs            int64             `json:"wait_ms"`
	Timestamp         int64             `json:"timestamp"`
	Before            int64             `json:"before"`
}

type client struct {
	bootstrap string
	admin     *kadm.Client
	producers map[string]*kgo.Client
}

func main() {
	plain, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		panic(err)
	}
	c := &client{bootstrap: os.Args[1], admin: kadm.NewClient(plain), producers: map[string]*kgo.Client{}}
	defer c.close()
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var one call
		if err := json.Unmarshal(line, &one); err != nil {
			panic(err)
		}
		reply := map[string]any{}
		if result, err := c.run(one); err != nil {
			reply["error"], reply["detail"] = errorName(err), err.Error()
		} else {
			reply["ok"] = result
		}
		if err := out.Encode(reply); err != nil {
			return
		}
	}
}

func (c *client) close() {
	for _, producer := range c.producers {
		producer.Close()
	}
	c.admin.Close()
}

func errorName(err error) string {
	var kafka *kerr.Error
	if errors.As(err, &kafka) {
		return kafka.Message
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "NO_ANSWER"
	}
	return fmt.Sprintf("%T", err)
}

func (c *client) run(one call) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch one.Op {
	case "version":
		return version(), nil
	case "create_topic":
		configs := map[string]*string{}
		for name, value := range one.Configs {
			configs[name] = &value
		}
		_, err := c.admin.CreateTopic(ctx, one.Partitions, one.ReplicationFactor, configs, one.Topic)
		return nil, err
	case "delete_topic":
		for _, producer := range c.producers { // franz-go keeps a topic's id until told that the topic is gone
			producer.PurgeTopicsFromClient(one.Topic)
		}
		_, err := c.admin.DeleteTopic(ctx, one.Topic)
		return nil, err
	case "create_partitions":
		replies, err := c.admin.UpdatePartitions(ctx, one.Total, one.Topic)
		return nil, first(err, replies.Error())
	case "list_topics":
		topics, err := c.admin.ListTopics(ctx)
		return topics.Names(), err
	case "describe_topic":
		return c.describeTopic(ctx, one.Topic)
	case "describe_cluster":
		return c.describeCluster(ctx)
	case "describe_configs":
		return c.describeConfigs(ctx, one.Topic)
	case "alter_configs":
		return nil, c.alterConfigs(ctx, one.Topic, one.Configs)
	case "produce":
		return c.produce(ctx, one)
	case "consume":
		return c.consume(one)
	case "offsets":
		return c.offsets(ctx, one)
	case "offset_for_time":
		return c.offsetForTime(ctx, one)
	case "delete_records":
		offsets := kadm.Offsets{}
		offsets.AddOffset(one.Topic, one.Partition, one.Before, -1)
		replies, err := c.admin.DeleteRecords(ctx, offsets)
		return nil, first(err, replies.Error())
	}
	return nil, fmt.Errorf("no such operation: %s", one.Op)
}

func first(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/twmb/franz-go" {
				return strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return "unknown"
}

func (c *client) describeTopic(ctx context.Context, topic string) (any, error) {
	metadata, err := c.admin.Metadata(ctx, topic)
	if err != nil {
		return nil, err
	}
	found := metadata.Topics[topic]
	id := fmt.Sprintf("%x", found.ID[:])
	uuid := strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-")
	return map[string]any{"partitions": len(found.Partitions), "topic_id": uuid}, found.Err
}

func (c *client) describeCluster(ctx context.Context) (any, error) {
	metadata, err := c.admin.BrokerMetadata(ctx)
	brokers := []map[string]any{}
	for _, broker := range metadata.Brokers {
		brokers = append(brokers, map[string]any{"id": broker.NodeID, "host": broker.Host, "port": broker.Port})
	}
	return map[string]any{"cluster_id": metadata.Cluster, "controller_id": metadata.Controller, "brokers": brokers}, err
}

func (c *client) describeConfigs(ctx context.Context, topic string) (any, error) {
	resources, err := c.admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, err
	}
	resource, err := resources.On(topic, nil)
	entries := []map[string]any{}
	for _, config := range resource.Configs {
		entries = append(entries, map[string]any{"name": config.Key, "value": config.Value, "source": config.Source.String()})
	}
	return entries, first(err, resource.Err)
}

func (c *client) alterConfigs(ctx context.Context, topic string, configs map[string]string) error {
	changes := []kadm.AlterConfig{}
	for name, value := range configs {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value})
	}
	replies, err := c.admin.AlterTopicConfigs(ctx, changes, topic)
	if err != nil {
		return err
	}
	reply, err := replies.On(topic, nil)
	return first(err, reply.Err)
}

func (c *client) producer(one call) (*kgo.Client, error) {
	key := fmt.Sprint(one.Codec, one.Acks, one.Idempotent)
	if found, ok := c.producers[key]; ok {
		return found, nil
	}
	codec := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}[one.Codec]
	acks := map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}[one.Acks]
	options := []kgo.Opt{
		kgo.SeedBrokers(c.bootstrap), kgo.ProducerBatchCompression(codec), kgo.RequiredAcks(acks),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(20 * time.Millisecond),
		kgo.UnknownTopicRetries(1), kgo.AllowAutoTopicCreation(), kgo.MetadataMinAge(50 * time.Millisecond),
	}
	if !one.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	made, err := kgo.NewClient(options...)
	if err == nil {
		c.producers[key] = made
	}
	return made, err
}

func (c *client) produce(ctx context.Context, one call) (any, error) {
	producer, err := c.producer(one)
	if err != nil {
		return nil, err
	}
	records := []*kgo.Record{}
	for _, wanted := range one.Records {
		made := &kgo.Record{Topic: one.Topic, Partition: one.Partition, Key: wanted.Key, Value: wanted.Value}
		if wanted.Timestamp != nil {
			made.Timestamp = time.UnixMilli(*wanted.Timestamp)
		}
		for _, header := range wanted.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: header[0].(string), Value: fromBase64(header[1])})
		}
		records = append(records, made)
	}
	results := producer.ProduceSync(ctx, records...)
	offsets := make([]int64, len(records))
	for i, made := range records {
		offsets[i] = made.Offset
	}
	return offsets, results.FirstErr()
}

func fromBase64(value any) []byte {
	if value == nil {
		return nil
	}
	var plain []byte
	if err := json.Unmarshal([]byte(`"`+value.(string)+`"`), &plain); err != nil {
		panic(err)
	}
	return plain
}

func (c *client) consume(one call) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(one.WaitMs)*time.Millisecond)
	defer cancel()
	start := kgo.NoResetOffset().At(one.Offset)
	if one.Offset == earliest {
		start = kgo.NoResetOffset().AtStart()
	}
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(c.bootstrap),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{one.Topic: {one.Partition: start}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
	)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	records := []record{}
	for len(records) < one.Count && ctx.Err() == nil {
		fetches := consumer.PollRecords(ctx, one.Count-len(records))
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) {
				return nil, failed.Err
			}
		}
		fetches.EachRecord(func(found *kgo.Record) { records = append(records, asJSON(found)) })
	}
	return records, nil
}

func asJSON(found *kgo.Record) record {
	timestamp := found.Timestamp.UnixMilli()
	headers := make([][2]any, len(found.Headers))
	for i, header := range found.Headers {
		headers[i] = [2]any{header.Key, header.Value}
	}
	return record{Value: found.Value, Key: found.Key, Headers: headers, Timestamp: &timestamp, Offset: found.Offset}
}

func (c *client) offsets(ctx context.Context, one call) (any, error) {
	low, err := c.admin.ListStartOffsets(ctx, one.Topic)
	if err != nil {
		return nil, err
	}
	high, err := c.admin.ListEndOffsets(ctx, one.Topic)
	from, _ := low.Lookup(one.Topic, one.Partition)
	to, _ := high.Lookup(one.Topic, one.Partition)
	return []int64{from.Offset, to.Offset}, first(err, from.Err, to.Err)
}

func (c *client) offsetForTime(ctx context.Context, one call) (any, error) {
	all, err := c.admin.ListOffsetsAfterMilli(ctx, one.Timestamp, one.Topic)
	if err != nil {
		return nil, err
	}
	found, _ := all.Lookup(one.Topic, one.Partition)
	if found.Timestamp < 0 { // past the last record kadm gives the end of the log
		return nil, found.Err
	}
	return found.Offset, found.Err
}
