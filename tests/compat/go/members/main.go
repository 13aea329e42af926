// Members of franz-go behind the line protocol of tests/compat/members/base.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type call struct {
	Op               string           `json:"op"`
	Member           string           `json:"member"`
	Group            string           `json:"group"`
	Topic            string           `json:"topic"`
	Assignor         string           `json:"assignor"`
	Protocol         string           `json:"protocol"`
	InstanceID       string           `json:"instance_id"`
	SessionTimeoutMs int64            `json:"session_timeout_ms"`
	Metadata         string           `json:"metadata"`
	Partition        int32            `json:"partition"`
	Pattern          string           `json:"pattern"`
	RemoteAssignor   string           `json:"remote_assignor"`
	Offsets          map[string]int64 `json:"offsets"`
}

type member struct {
	lock        sync.Mutex
	client      *kgo.Client
	topic       string
	partitions  map[int32]bool
	assignments int
	revoked     [][]int32
	records     [][2]int64
	stopped     chan struct{}
	stop        context.CancelFunc
}

type program struct {
	bootstrap string
	admin     *kadm.Client
	members   map[string]*member
}

func main() {
	plain, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]))
	if err != nil {
		panic(err)
	}
	p := &program{os.Args[1], kadm.NewClient(plain), map[string]*member{}}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			os.Exit(0) // members that were abandoned shall not say goodbye
		}
		var one call
		if err := json.Unmarshal(line, &one); err != nil {
			panic(err)
		}
		reply := map[string]any{}
		if result, err := p.run(one); err != nil {
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

func (p *program) run(one call) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	switch one.Op {
	case "version":
		return version(), nil
	case "join":
		m, err := p.join(one)
		p.members[one.Member] = m
		return nil, err
	case "look":
		return p.members[one.Member].look(), nil
	case "commit":
		return nil, p.members[one.Member].commit(ctx, one.Metadata)
	case "leave":
		m := p.members[one.Member]
		m.stop()
		<-m.stopped
		return nil, m.client.LeaveGroupContext(ctx)
	case "abandon":
		m := p.members[one.Member]
		m.stop()
		<-m.stopped
		go m.client.CloseAllowingRebalance()
		return nil, nil
	case "list_groups":
		groups, err := p.admin.ListGroups(ctx)
		found := map[string]string{}
		for _, group := range groups {
			found[group.Group] = group.State
		}
		return found, err
	case "describe_group":
		return p.describe(ctx, one.Group)
	case "committed":
		offsets, err := p.admin.FetchOffsets(ctx, one.Group)
		found := map[string][2]any{}
		offsets.Each(func(o kadm.OffsetResponse) {
			found[strconv.Itoa(int(o.Partition))] = [2]any{o.At, o.Metadata}
		})
		return found, err
	case "set_offsets":
		offsets := kadm.Offsets{}
		for partition, at := range one.Offsets {
			number, _ := strconv.Atoi(partition)
			offsets.AddOffset(one.Topic, int32(number), at, -1)
		}
		committed, err := p.admin.CommitOffsets(ctx, one.Group, offsets)
		if err == nil {
			err = committed.Error()
		}
		return nil, err
	case "delete_group":
		_, err := p.admin.DeleteGroup(ctx, one.Group)
		return nil, err
	case "delete_offsets":
		places := kadm.TopicsSet{}
		places.Add(one.Topic, one.Partition)
		deleted, err := p.admin.DeleteOffsets(ctx, one.Group, places)
		if err == nil {
			err = deleted.Error()
		}
		return nil, err
	case "remove_member":
		removed, err := p.admin.LeaveGroup(ctx, kadm.LeaveGroup(one.Group).InstanceIDs(one.InstanceID))
		if err == nil {
			err = removed.Error()
		}
		return nil, err
	}
	return nil, fmt.Errorf("no such operation: %s", one.Op)
}

func (p *program) describe(ctx context.Context, name string) (any, error) {
	listed, err := p.admin.ListGroupsByType(ctx, []string{"consumer"})
	if err != nil {
		return nil, err
	}
	members := [][]int{}
	if _, ok := listed[name]; ok {
		groups, err := p.admin.DescribeConsumerGroups(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, one := range groups[name].Members {
			owned := []int{}
			one.Assignment.Each(func(_ string, partition int32) { owned = append(owned, int(partition)) })
			sort.Ints(owned)
			members = append(members, owned)
		}
		return map[string]any{"state": groups[name].State, "members": members}, groups[name].Err
	}
	groups, err := p.admin.DescribeGroups(ctx, name)
	if err != nil {
		return nil, err
	}
	group, err := groups.On(name, nil)
	for _, one := range group.Members {
		owned := []int{}
		if assigned, ok := one.Assigned.AsConsumer(); ok {
			for _, topic := range assigned.Topics {
				for _, partition := range topic.Partitions {
					owned = append(owned, int(partition))
				}
			}
		}
		sort.Ints(owned)
		members = append(members, owned)
	}
	sort.Slice(members, func(i, j int) bool { return fmt.Sprint(members[i]) < fmt.Sprint(members[j]) })
	return map[string]any{"state": group.State, "members": members}, err
}

func (p *program) join(one call) (*member, error) {
	m := &member{topic: one.Topic, partitions: map[int32]bool{}, stopped: make(chan struct{})}
	balancer := map[string]kgo.GroupBalancer{"range": kgo.RangeBalancer(), "cooperative-sticky": kgo.CooperativeStickyBalancer()}[one.Assignor]
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	options := []kgo.Opt{
		kgo.SeedBrokers(p.bootstrap), kgo.ConsumerGroup(one.Group), kgo.ConsumeTopics(one.Topic),
		kgo.Balancers(balancer), kgo.DisableAutoCommit(), kgo.SessionTimeout(time.Duration(one.SessionTimeoutMs) * time.Millisecond),
		kgo.HeartbeatInterval(200 * time.Millisecond), kgo.RebalanceTimeout(10 * time.Second),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) { m.assigned(got[one.Topic]) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { m.taken(lost[one.Topic]) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { m.taken(lost[one.Topic]) }),
	}
	if one.InstanceID != "" {
		options = append(options, kgo.InstanceID(one.InstanceID))
	}
	if one.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	if one.RemoteAssignor == "uniform" {
		options = append(options, kgo.Balancers(kgo.StickyBalancer())) // what it calls the broker's uniform
	}
	if one.Pattern != "" {
		options = append(options, kgo.ConsumeTopics(one.Pattern), kgo.ConsumeRegex())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	m.client = client
	go m.poll(ctx)
	return m, nil
}

func (m *member) assigned(partitions []int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.assignments++
	for _, partition := range partitions {
		m.partitions[partition] = true
	}
}

func (m *member) taken(partitions []int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if len(partitions) > 0 {
		m.revoked = append(m.revoked, partitions)
	}
	for _, partition := range partitions {
		delete(m.partitions, partition)
	}
}

func (m *member) poll(ctx context.Context) {
	defer close(m.stopped)
	for ctx.Err() == nil {
		fetches := m.client.PollFetches(ctx)
		m.lock.Lock()
		fetches.EachRecord(func(r *kgo.Record) { m.records = append(m.records, [2]int64{int64(r.Partition), r.Offset}) })
		m.lock.Unlock()
	}
}

func (m *member) commit(ctx context.Context, metadata string) error {
	m.lock.Lock()
	positions := map[int32]kgo.EpochOffset{}
	for _, record := range m.records {
		partition := int32(record[0])
		if m.partitions[partition] && record[1] >= positions[partition].Offset {
			positions[partition] = kgo.EpochOffset{Epoch: -1, Offset: record[1] + 1}
		}
	}
	m.lock.Unlock()
	with := kgo.PreCommitFnContext(ctx, func(request *kmsg.OffsetCommitRequest) error {
		for t := range request.Topics {
			for p := range request.Topics[t].Partitions {
				request.Topics[t].Partitions[p].Metadata = &metadata
			}
		}
		return nil
	})
	var failed error
	m.client.CommitOffsetsSync(with, map[string]map[int32]kgo.EpochOffset{m.topic: positions},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, reply *kmsg.OffsetCommitResponse, err error) {
			failed = err
			if reply == nil {
				return
			}
			for _, topic := range reply.Topics {
				for _, partition := range topic.Partitions {
					if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
						failed = err
					}
				}
			}
		})
	return failed
}

func (m *member) look() any {
	m.lock.Lock()
	defer m.lock.Unlock()
	partitions := []int32{}
	for partition := range m.partitions {
		partitions = append(partitions, partition)
	}
	revoked, records := m.revoked, m.records
	if revoked == nil {
		revoked = [][]int32{}
	}
	if records == nil {
		records = [][2]int64{}
	}
	return map[string]any{"partitions": partitions, "assignments": m.assignments, "revoked": revoked, "records": records, "error": ""}
}
