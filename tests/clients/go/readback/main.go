// Reads one partition with each client in its default configuration, and answers with the SHA-256 of each value by offset.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"korvet/clients/session"
)

type digests map[int64]string

func main() { session.Run(read) }

func read(ctx context.Context, asked session.Arguments) map[string]digests {
	return map[string]digests{
		"franz":     withFranz(ctx, asked),
		"sarama":    withSarama(ctx, asked),
		"segmentio": withSegmentio(ctx, asked),
	}
}

func (found digests) add(offset int64, value []byte) {
	sum := sha256.Sum256(value)
	found[offset] = hex.EncodeToString(sum[:])
}

func withFranz(ctx context.Context, asked session.Arguments) digests {
	start := map[string]map[int32]kgo.Offset{asked.Topic: {0: kgo.NewOffset().AtStart()}}
	client := session.Must(kgo.NewClient(kgo.SeedBrokers(asked.Bootstrap), kgo.ConsumePartitions(start)))
	defer client.Close()
	found := digests{}
	for len(found) < asked.Count {
		fetches := client.PollFetches(ctx)
		session.Check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) { found.add(record.Offset, record.Value) })
	}
	return found
}

func withSarama(ctx context.Context, asked session.Arguments) digests {
	config := sarama.NewConfig()
	config.Consumer.Return.Errors = true
	client := session.Must(sarama.NewConsumer([]string{asked.Bootstrap}, config))
	defer client.Close()
	partition := session.Must(client.ConsumePartition(asked.Topic, 0, sarama.OffsetOldest))
	defer partition.AsyncClose()
	found := digests{}
	for len(found) < asked.Count {
		select {
		case message := <-partition.Messages():
			found.add(message.Offset, message.Value)
		case failed := <-partition.Errors():
			panic(failed)
		case <-ctx.Done():
			panic(ctx.Err())
		}
	}
	return found
}

func withSegmentio(ctx context.Context, asked session.Arguments) digests {
	config := kafka.ReaderConfig{Brokers: []string{asked.Bootstrap}, Topic: asked.Topic, MaxAttempts: 1}
	reader := kafka.NewReader(config)
	defer reader.Close()
	found := digests{}
	for len(found) < asked.Count {
		message := session.Must(reader.ReadMessage(ctx))
		found.add(message.Offset, message.Value)
	}
	return found
}
