// One session of sarama in its default configuration, or with the newest protocol versions it knows.
package main

import (
	"context"
	"errors"

	"github.com/IBM/sarama"

	"korvet/clients/session"
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func main() { session.Run(play) }

func play(ctx context.Context, asked session.Arguments) (answer session.Answer) {
	admin := session.Must(sarama.NewClusterAdmin([]string{asked.Bootstrap}, configuration(asked)))
	defer func() { session.Check(admin.Close()) }()
	hours := "7200000"
	detail := sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &hours}}
	session.Check(admin.CreateTopic(asked.Topic, &detail, false))
	for codec := range codecs {
		answer.Produced = append(answer.Produced, produce(asked, codec)...)
	}

	first := join(asked)
	for range answer.Produced {
		answer.Consumed = append(answer.Consumed, first.take(ctx))
	}
	answer.First, _ = members(ctx, admin, asked, 1)
	second := join(asked)
	answer.Second, answer.State = members(ctx, admin, asked, 2)
	second.leave()
	answer.Last, _ = members(ctx, admin, asked, 1)
	first.leave()

	offsets(ctx, admin, asked, &answer)
	answer.Sought = seek(asked, answer.Consumed[len(answer.Consumed)/2])
	answer.Config = map[string]string{}
	for _, entry := range session.Must(admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: asked.Topic})) {
		answer.Config[entry.Name] = entry.Value
	}
	deleted := map[int32]int64{}
	for partition, offset := range answer.Committed {
		deleted[int32(partition)] = offset
	}
	session.Check(admin.DeleteRecords(asked.Topic, deleted))
	session.Check(admin.DeleteConsumerGroup(asked.Group))
	session.Check(admin.DeleteTopic(asked.Topic))
	session.Until(ctx, "the topic is gone", func() bool {
		_, listed := session.Must(admin.ListTopics())[asked.Topic]
		return !listed
	})
	_, listed := session.Must(admin.ListConsumerGroups())[asked.Group]
	answer.Gone = !listed
	return answer
}

func configuration(asked session.Arguments) *sarama.Config {
	config := sarama.NewConfig()
	if asked.Newest {
		config.Version = sarama.MaxVersion
		config.Producer.Idempotent = true
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Net.MaxOpenRequests = 1
	}
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	return config
}

func produce(asked session.Arguments, codec string) (produced []session.Record) {
	config := configuration(asked)
	config.Producer.Compression = codecs[codec]
	producer := session.Must(sarama.NewSyncProducer([]string{asked.Bootstrap}, config))
	var messages []*sarama.ProducerMessage
	for _, value := range session.Values(codec, asked.Count) {
		headers := []sarama.RecordHeader{{Key: []byte("trace"), Value: []byte("of " + value)}}
		content := sarama.StringEncoder(value)
		messages = append(messages, &sarama.ProducerMessage{Topic: asked.Topic, Key: content, Value: content, Headers: headers})
	}
	session.Check(producer.SendMessages(messages))
	for n, value := range session.Values(codec, asked.Count) {
		sent := messages[n]
		produced = append(produced, session.Record{Partition: int(sent.Partition), Offset: sent.Offset, Key: value, Value: value, Trace: "of " + value})
	}
	session.Check(producer.Close())
	return produced
}

// member consumes as a member of the group, and marks the consumed records; sarama commits them when it leaves.
type member struct {
	group   sarama.ConsumerGroup
	records chan session.Record
	cancel  context.CancelFunc
	done    chan error
}

func join(asked session.Arguments) *member {
	ctx, cancel := context.WithCancel(context.Background())
	group := session.Must(sarama.NewConsumerGroup([]string{asked.Bootstrap}, asked.Group, configuration(asked)))
	joined := &member{group, make(chan session.Record), cancel, make(chan error, 1)}
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			err = group.Consume(ctx, []string{asked.Topic}, joined)
		}
		joined.done <- err
	}()
	return joined
}

func (m *member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(at sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		select {
		case m.records <- plain(message):
			at.MarkMessage(message, "")
		case <-at.Context().Done():
			return nil
		}
	}
	return nil
}

func (m *member) take(ctx context.Context) session.Record {
	select {
	case record := <-m.records:
		return record
	case <-ctx.Done():
		panic(errors.New("no record came"))
	}
}

func (m *member) leave() {
	m.cancel()
	session.Check(<-m.done)
	session.Check(m.group.Close())
}

// members waits until the group is stable with this number of members, which own all four partitions.
func members(ctx context.Context, admin sarama.ClusterAdmin, asked session.Arguments, count int) (found session.Partitions, state string) {
	session.Until(ctx, "the group is balanced", func() bool {
		group := session.Must(admin.DescribeConsumerGroups([]string{asked.Group}))[0]
		found, state = session.Partitions{}, group.State
		total := 0
		for id, each := range group.Members {
			found[id] = []int{}
			assigned := session.Must(each.GetMemberAssignment())
			if assigned == nil {
				continue
			}
			for _, partition := range assigned.Topics[asked.Topic] {
				found[id] = append(found[id], int(partition))
				total++
			}
		}
		return state == "Stable" && len(found) == count && total == 4
	})
	return found, state
}

// offsets reads the committed offsets and the ends, and subtracts them.
func offsets(ctx context.Context, admin sarama.ClusterAdmin, asked session.Arguments, answer *session.Answer) {
	latest, all := map[int32]int64{}, []int32{0, 1, 2, 3}
	for _, partition := range all {
		latest[partition] = sarama.OffsetNewest
	}
	ends := session.Must(admin.ListOffsets(map[string]map[int32]int64{asked.Topic: latest}, nil))[asked.Topic]
	found := session.Must(admin.ListConsumerGroupOffsets(asked.Group, map[string][]int32{asked.Topic: all}))
	answer.Committed, answer.Ends = map[int]int64{}, map[int]int64{}
	for _, partition := range all {
		if err := ends[partition].Err; !errors.Is(err, sarama.ErrNoError) {
			session.Check(err)
		}
		block := found.GetBlock(asked.Topic, partition)
		if block == nil {
			block = found.GetGroupBlock(asked.Group, asked.Topic, partition)
		}
		answer.Committed[int(partition)], answer.Ends[int(partition)] = block.Offset, ends[partition].Offset
		answer.Lag += ends[partition].Offset - block.Offset
	}
}

// seek reads the record at a known position, without a group.
func seek(asked session.Arguments, known session.Record) session.Record {
	consumer := session.Must(sarama.NewConsumer([]string{asked.Bootstrap}, configuration(asked)))
	defer func() { session.Check(consumer.Close()) }()
	partition := session.Must(consumer.ConsumePartition(asked.Topic, int32(known.Partition), known.Offset))
	defer func() { session.Check(partition.Close()) }()
	return plain(<-partition.Messages())
}

func plain(message *sarama.ConsumerMessage) session.Record {
	return session.Record{
		Partition: int(message.Partition),
		Offset:    message.Offset,
		Key:       string(message.Key),
		Value:     string(message.Value),
		Trace:     string(message.Headers[0].Value),
	}
}
