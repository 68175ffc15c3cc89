// A partition whose newest records are gone: a client reads `count` records, gets to the end, and then reads one that
// is appended there. The group names the client, franz or sarama.
package main

import (
	"context"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"

	"korvet/clients/session"
)

func main() { session.Run(play) }

func play(ctx context.Context, asked session.Arguments) []string {
	values := make(chan string, 100)
	if asked.Group == "franz" {
		go franz(ctx, asked, values)
	} else {
		go saramaReads(asked, values)
	}
	var read []string
	for range asked.Count {
		read = append(read, <-values)
	}
	client := session.Must(kgo.NewClient(kgo.SeedBrokers(asked.Bootstrap), kgo.DefaultProduceTopic(asked.Topic)))
	defer client.Close()
	session.Check(client.ProduceSync(ctx, kgo.KeySliceRecord([]byte("k"), []byte("later"))).FirstErr())
	return append(read, <-values)
}

func franz(ctx context.Context, asked session.Arguments, values chan<- string) {
	offset := kgo.NewOffset().AtStart()
	client := session.Must(kgo.NewClient(
		kgo.SeedBrokers(asked.Bootstrap),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{asked.Topic: {0: offset}}),
	))
	defer client.Close()
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(record *kgo.Record) { values <- string(record.Value) })
	}
}

func saramaReads(asked session.Arguments, values chan<- string) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	consumer := session.Must(sarama.NewConsumer([]string{asked.Bootstrap}, config))
	defer consumer.Close()
	partition := session.Must(consumer.ConsumePartition(asked.Topic, 0, sarama.OffsetOldest))
	for message := range partition.Messages() {
		values <- string(message.Value)
	}
}
