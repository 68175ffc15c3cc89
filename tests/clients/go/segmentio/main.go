// One session of segmentio's kafka-go in its default configuration.
package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"

	"korvet/clients/session"
)

var codecs = map[string]kafka.Compression{
	"none":   0,
	"gzip":   kafka.Gzip,
	"snappy": kafka.Snappy,
	"lz4":    kafka.Lz4,
	"zstd":   kafka.Zstd,
}

var partitions = []int{0, 1, 2, 3}

func main() { session.Run(play) }

func play(ctx context.Context, asked session.Arguments) (answer session.Answer) {
	client := &kafka.Client{Addr: kafka.TCP(asked.Bootstrap)}
	created := session.Must(client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: asked.Topic, NumPartitions: len(partitions), ReplicationFactor: 1,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "7200000"}},
	}}}))
	session.Check(created.Errors[asked.Topic])
	for codec := range codecs {
		answer.Produced = append(answer.Produced, produce(ctx, asked, codec)...)
	}

	first := member(asked)
	var consumed []kafka.Message
	for range answer.Produced {
		message := session.Must(first.FetchMessage(ctx))
		consumed = append(consumed, message)
		answer.Consumed = append(answer.Consumed, plain(message))
	}
	session.Check(first.CommitMessages(ctx, consumed...))
	answer.First, _ = members(ctx, client, asked, 1)
	second := member(asked)
	answer.Second, answer.State = members(ctx, client, asked, 2)
	session.Check(second.Close())
	answer.Last, _ = members(ctx, client, asked, 1)
	session.Check(first.Close())

	offsets(ctx, client, asked, &answer)
	answer.Sought = seek(ctx, asked, answer.Consumed[len(answer.Consumed)/2])
	answer.Config = map[string]string{}
	resource := kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: asked.Topic}
	described := session.Must(client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{resource},
	}))
	for _, entry := range described.Resources[0].ConfigEntries {
		answer.Config[entry.ConfigName] = entry.ConfigValue
	}
	answer.Gone = remove(ctx, client, asked)
	return answer
}

func produce(ctx context.Context, asked session.Arguments, codec string) (produced []session.Record) {
	var lock sync.Mutex
	writer := &kafka.Writer{
		Addr: kafka.TCP(asked.Bootstrap), Topic: asked.Topic, Balancer: &kafka.Hash{}, Compression: codecs[codec],
		RequiredAcks: kafka.RequireAll, BatchTimeout: 20 * time.Millisecond,
		Completion: func(messages []kafka.Message, err error) {
			session.Check(err)
			lock.Lock()
			defer lock.Unlock()
			for _, message := range messages {
				produced = append(produced, plain(message))
			}
		},
	}
	var messages []kafka.Message
	for _, value := range session.Values(codec, asked.Count) {
		headers := []kafka.Header{{Key: "trace", Value: []byte("of " + value)}}
		messages = append(messages, kafka.Message{Key: []byte(value), Value: []byte(value), Headers: headers})
	}
	session.Check(writer.WriteMessages(ctx, messages...))
	session.Check(writer.Close())
	return produced
}

func member(asked session.Arguments) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{asked.Bootstrap}, GroupID: asked.Group, Topic: asked.Topic, StartOffset: kafka.FirstOffset,
		// A member in a fetch or between heartbeats delays the others: 13 s by default.
		MaxWait: 300 * time.Millisecond, HeartbeatInterval: 300 * time.Millisecond,
	})
}

// members waits until the group is stable with this number of members, which own all four partitions.
func members(ctx context.Context, client *kafka.Client, asked session.Arguments, count int) (found session.Partitions, state string) {
	session.Until(ctx, "the group is balanced", func() bool {
		answer := session.Must(client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{asked.Group}}))
		group := answer.Groups[0]
		session.Check(group.Error)
		found, state = session.Partitions{}, group.GroupState
		total := 0
		for _, each := range group.Members {
			found[each.MemberID] = []int{}
			for _, topic := range each.MemberAssignments.Topics {
				found[each.MemberID] = append(found[each.MemberID], topic.Partitions...)
				total += len(topic.Partitions)
			}
		}
		return state == "Stable" && len(found) == count && total == len(partitions)
	})
	return found, state
}

// offsets reads the committed offsets and the ends, and subtracts them.
func offsets(ctx context.Context, client *kafka.Client, asked session.Arguments, answer *session.Answer) {
	found := session.Must(client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: asked.Group, Topics: map[string][]int{asked.Topic: partitions},
	}))
	session.Check(found.Error)
	var latest []kafka.OffsetRequest
	for _, partition := range partitions {
		latest = append(latest, kafka.LastOffsetOf(partition))
	}
	ends := session.Must(client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{asked.Topic: latest},
	}))
	answer.Committed, answer.Ends = map[int]int64{}, map[int]int64{}
	for _, each := range found.Topics[asked.Topic] {
		session.Check(each.Error)
		answer.Committed[each.Partition] = each.CommittedOffset
		answer.Lag -= each.CommittedOffset
	}
	for _, each := range ends.Topics[asked.Topic] {
		session.Check(each.Error)
		answer.Ends[each.Partition] = each.LastOffset
		answer.Lag += each.LastOffset
	}
}

// seek reads the record at a known position, without a group.
func seek(ctx context.Context, asked session.Arguments, known session.Record) session.Record {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{asked.Bootstrap}, Topic: asked.Topic, Partition: known.Partition,
	})
	defer func() { session.Check(reader.Close()) }()
	session.Check(reader.SetOffset(known.Offset))
	return plain(session.Must(reader.ReadMessage(ctx)))
}

// remove deletes group and topic, and returns whether both are gone.
func remove(ctx context.Context, client *kafka.Client, asked session.Arguments) bool {
	groups := session.Must(client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{asked.Group}}))
	session.Check(groups.Errors[asked.Group])
	topics := session.Must(client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{asked.Topic}}))
	session.Check(topics.Errors[asked.Topic])
	session.Until(ctx, "the topic is gone", func() bool {
		metadata := session.Must(client.Metadata(ctx, &kafka.MetadataRequest{}))
		return !slices.ContainsFunc(metadata.Topics, func(topic kafka.Topic) bool { return topic.Name == asked.Topic })
	})
	listed := session.Must(client.ListGroups(ctx, &kafka.ListGroupsRequest{}))
	return !slices.ContainsFunc(listed.Groups, func(group kafka.ListGroupsResponseGroup) bool {
		return group.GroupID == asked.Group
	})
}

func plain(message kafka.Message) session.Record {
	return session.Record{
		Partition: message.Partition,
		Offset:    message.Offset,
		Key:       string(message.Key),
		Value:     string(message.Value),
		Trace:     string(message.Headers[0].Value),
	}
}
