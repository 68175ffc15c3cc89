// One session of franz-go in its default configuration, with its admin package.
package main

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"korvet/clients/session"
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func main() { session.Run(play) }

func play(ctx context.Context, asked session.Arguments) (answer session.Answer) {
	client := open(asked)
	defer client.Close()
	admin := kadm.NewClient(client)
	hours := "7200000"
	created := session.Must(admin.CreateTopics(ctx, 4, 1, map[string]*string{"retention.ms": &hours}, asked.Topic))
	session.Check(created.Error())
	for codec := range codecs {
		answer.Produced = append(answer.Produced, produce(ctx, asked, codec)...)
	}

	first := member(asked)
	defer first.Close()
	consumed := take(ctx, first, len(answer.Produced))
	for _, record := range consumed {
		answer.Consumed = append(answer.Consumed, plain(record))
	}
	session.Check(first.CommitRecords(ctx, consumed...))
	answer.First, _ = members(ctx, admin, asked, 1)
	second := member(asked)
	answer.Second, answer.State = members(ctx, admin, asked, 2)
	second.Close()
	answer.Last, _ = members(ctx, admin, asked, 1)

	answer.Committed, answer.Ends = map[int]int64{}, map[int]int64{}
	session.Must(admin.FetchOffsets(ctx, asked.Group)).Each(func(found kadm.OffsetResponse) {
		answer.Committed[int(found.Partition)] = found.At
	})
	session.Must(admin.ListEndOffsets(ctx, asked.Topic)).Each(func(end kadm.ListedOffset) {
		answer.Ends[int(end.Partition)] = end.Offset
	})
	answer.Lag = session.Must(admin.Lag(ctx, asked.Group))[asked.Group].Lag.Total()

	middle := consumed[len(consumed)/2]
	first.SetOffsets(map[string]map[int32]kgo.EpochOffset{
		asked.Topic: {middle.Partition: {Epoch: middle.LeaderEpoch, Offset: middle.Offset}},
	})
	answer.Sought = plain(take(ctx, first, 1)[0])
	first.Close()

	answer.Config = map[string]string{}
	configs := session.Must(admin.DescribeTopicConfigs(ctx, asked.Topic))
	for _, config := range configs[0].Configs {
		answer.Config[config.Key] = config.MaybeValue()
	}
	_, err := admin.DeleteRecords(ctx, session.Must(admin.FetchOffsets(ctx, asked.Group)).Offsets())
	session.Check(err)
	session.Must(admin.DeleteGroup(ctx, asked.Group))
	session.Must(admin.DeleteTopic(ctx, asked.Topic))
	session.Until(ctx, "the topic is gone", func() bool {
		described := session.Must(admin.ListTopics(ctx, asked.Topic))[asked.Topic]
		return errors.Is(described.Err, kerr.UnknownTopicOrPartition)
	})
	_, listed := session.Must(admin.ListGroups(ctx))[asked.Group]
	answer.Gone = !listed
	return answer
}

func open(asked session.Arguments, options ...kgo.Opt) *kgo.Client {
	return session.Must(kgo.NewClient(append(options, kgo.SeedBrokers(asked.Bootstrap))...))
}

func produce(ctx context.Context, asked session.Arguments, codec string) (produced []session.Record) {
	client := open(asked, kgo.DefaultProduceTopic(asked.Topic), kgo.ProducerBatchCompression(codecs[codec]))
	defer client.Close()
	var records []*kgo.Record
	for _, value := range session.Values(codec, asked.Count) {
		headers := []kgo.RecordHeader{{Key: "trace", Value: []byte("of " + value)}}
		records = append(records, &kgo.Record{Key: []byte(value), Value: []byte(value), Headers: headers})
	}
	results := client.ProduceSync(ctx, records...)
	session.Check(results.FirstErr())
	for _, result := range results {
		produced = append(produced, plain(result.Record))
	}
	return produced
}

func member(asked session.Arguments) *kgo.Client {
	return open(asked, kgo.ConsumerGroup(asked.Group), kgo.ConsumeTopics(asked.Topic), kgo.DisableAutoCommit())
}

// take polls until it has this number of records.
func take(ctx context.Context, client *kgo.Client, count int) (records []*kgo.Record) {
	for len(records) < count {
		fetches := client.PollFetches(ctx)
		session.Check(fetches.Err())
		records = append(records, fetches.Records()...)
	}
	return records
}

// members waits until the group is stable with this number of members, which own all four partitions.
func members(ctx context.Context, admin *kadm.Client, asked session.Arguments, count int) (found session.Partitions, state string) {
	session.Until(ctx, "the group is balanced", func() bool {
		group := session.Must(admin.DescribeGroups(ctx, asked.Group))[asked.Group]
		found, state = session.Partitions{}, group.State
		total := 0
		for _, each := range group.Members {
			assigned, _ := each.Assigned.AsConsumer()
			found[each.MemberID] = []int{}
			for _, topic := range assigned.Topics {
				total += len(topic.Partitions)
				for _, partition := range topic.Partitions {
					found[each.MemberID] = append(found[each.MemberID], int(partition))
				}
			}
		}
		return state == "Stable" && len(found) == count && total == 4
	})
	return found, state
}

func plain(record *kgo.Record) session.Record {
	return session.Record{
		Partition: int(record.Partition),
		Offset:    record.Offset,
		Key:       string(record.Key),
		Value:     string(record.Value),
		Trace:     string(record.Headers[0].Value),
	}
}
