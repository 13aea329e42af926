// Transactional producers of franz-go behind the line protocol of tests/compat/transactors/base.py.
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
	"github.com/twmb/franz-go/pkg/kmsg"
)

const last = "the last one"

type call struct {
	Op              string   `json:"op"`
	Producer        string   `json:"producer"`
	TransactionalID string   `json:"transactional_id"`
	TimeoutMs       int64    `json:"timeout_ms"`
	Topic           string   `json:"topic"`
	Partition       int32    `json:"partition"`
	Partitions      int32    `json:"partitions"`
	Values          []string `json:"values"`
	Group           string   `json:"group"`
	Offset          int64    `json:"offset"`
	Commit          bool     `json:"commit"`
	Committed       bool     `json:"committed"`
}

var producers = map[string]*kgo.Client{}
var members = map[string]membership{} // by group: who commits its offsets

type membership struct {
	client     *kgo.Client
	id         string
	generation int32
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0) // open transactions stay open
		}
		var one call
		if err := json.Unmarshal(line, &one); err != nil {
			panic(err)
		}
		reply := map[string]any{}
		if result, err := run(one); err != nil {
			reply["error"], reply["detail"] = errorName(err), err.Error()
		} else {
			reply["ok"] = result
		}
		if err := out.Encode(reply); err != nil {
			return
		}
	}
}

func errorName(err error) string {
	var kafka *kerr.Error
	if errors.As(err, &kafka) {
		return kafka.Message
	}
	return fmt.Sprintf("%T", err)
}

func run(one call) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	producer := producers[one.Producer]
	switch one.Op {
	case "version":
		return version(), nil
	case "init":
		producer, err := kgo.NewClient(
			kgo.SeedBrokers(os.Args[1]), kgo.TransactionalID(one.TransactionalID),
			kgo.TransactionTimeout(time.Duration(one.TimeoutMs)*time.Millisecond),
			kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond),
		)
		if err != nil {
			return nil, err
		}
		producers[one.Producer] = producer
		_, _, err = producer.ProducerID(ctx)
		return nil, err
	case "begin":
		return nil, producer.BeginTransaction()
	case "send":
		records := []*kgo.Record{}
		for _, value := range one.Values {
			records = append(records, &kgo.Record{Topic: one.Topic, Partition: one.Partition, Value: []byte(value)})
		}
		return nil, producer.ProduceSync(ctx, records...).FirstErr()
	case "offsets":
		return nil, commitOffset(ctx, producer, one)
	case "end":
		return nil, producer.EndTransaction(ctx, kgo.TransactionEndTry(one.Commit))
	case "read":
		return read(ctx, one)
	case "join":
		return nil, join(ctx, one)
	case "list_transactions", "describe_transaction", "abort_in":
		client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
		if err != nil {
			return nil, err
		}
		defer client.Close()
		return administrate(ctx, kadm.NewClient(client), one)
	}
	return nil, fmt.Errorf("no such operation: %s", one.Op)
}

// franz-go commits offsets in its GroupTransactSession; a client on its own asks as that does.
func commitOffset(ctx context.Context, producer *kgo.Client, one call) error {
	id, epoch, err := producer.ProducerID(ctx)
	if err != nil {
		return err
	}
	transactionalID := producer.OptValue(kgo.TransactionalID).(string)
	request := kmsg.NewPtrTxnOffsetCommitRequest()
	request.TransactionalID, request.Group, request.ProducerID, request.ProducerEpoch = transactionalID, one.Group, id, epoch
	request.Generation = -1
	if member, ok := members[one.Group]; ok {
		request.MemberID, request.Generation = member.id, member.generation
	}
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic = one.Topic
	place := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	place.Offset = one.Offset
	topic.Partitions = append(topic.Partitions, place)
	request.Topics = append(request.Topics, topic)
	response, err := request.RequestWith(ctx, producer)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
}

func join(ctx context.Context, one call) error {
	assigned := make(chan struct{}, 1)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]), kgo.ConsumerGroup(one.Group), kgo.ConsumeTopics(one.Topic), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { assigned <- struct{}{} }),
	)
	if err != nil {
		return err
	}
	select {
	case <-assigned:
	case <-ctx.Done():
		return ctx.Err()
	}
	id, generation := client.GroupMetadata()
	members[one.Group] = membership{client, id, generation}
	return nil
}

func administrate(ctx context.Context, admin *kadm.Client, one call) (any, error) {
	switch one.Op {
	case "list_transactions":
		listed, err := admin.ListTransactions(ctx, nil, nil)
		found := map[string]string{}
		for id, transaction := range listed {
			found[id] = transaction.State
		}
		return found, err
	case "describe_transaction":
		described, err := admin.DescribeTransactions(ctx, one.TransactionalID)
		if err != nil {
			return nil, err
		}
		found, err := described.On(one.TransactionalID, nil)
		places := []string{}
		found.Topics.Each(func(topic string, partition int32) { places = append(places, fmt.Sprintf("%s-%d", topic, partition)) })
		return map[string]any{"state": found.State, "partitions": places}, err
	}
	places := kadm.TopicsSet{}
	places.Add(one.Topic, 0)
	described, err := admin.DescribeProducers(ctx, places)
	if err != nil {
		return nil, err
	}
	for _, open := range described.SortedProducers() {
		if open.CurrentTxnStartOffset < 0 {
			continue
		}
		_, err = admin.WriteTxnMarkers(ctx, kadm.TxnMarkers{
			ProducerID: open.ProducerID, ProducerEpoch: open.ProducerEpoch, CoordinatorEpoch: open.CoordinatorEpoch, Topics: places,
		})
	}
	return nil, err
}

func read(ctx context.Context, one call) (any, error) {
	isolation := kgo.ReadUncommitted()
	if one.Committed {
		isolation = kgo.ReadCommitted()
	}
	places := map[int32]kgo.Offset{}
	found := make([][]string, one.Partitions)
	for number := range found {
		places[int32(number)] = kgo.NewOffset().At(0)
	}
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]), kgo.FetchIsolationLevel(isolation),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{one.Topic: places}),
	)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	for finished := 0; finished < len(found); {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			found[record.Partition] = append(found[record.Partition], string(record.Value))
			if string(record.Value) == last {
				finished++
			}
		})
	}
	return found, nil
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
