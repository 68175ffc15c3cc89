// Transactions of franz-go in turn: one that commits a record, then one that is aborted before its record was
// sent, and so ends empty directly after the previous one.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"korvet/clients/session"
)

// ended is the client's error for each transaction; empty means success.
type ended struct {
	Committed []string `json:"committed"`
	Aborted   []string `json:"aborted"`
}

func main() { session.Run(play) }

func play(ctx context.Context, asked session.Arguments) (answer ended) {
	client := session.Must(kgo.NewClient(
		kgo.SeedBrokers(asked.Bootstrap),
		kgo.TransactionalID(asked.Group),
		kgo.DefaultProduceTopic(asked.Topic),
		kgo.ProducerLinger(time.Minute),
	))
	defer client.Close()
	for n := range asked.Count {
		session.Check(client.BeginTransaction())
		client.Produce(ctx, kgo.StringRecord(fmt.Sprint(n)), func(_ *kgo.Record, err error) { session.Check(err) })
		session.Check(client.Flush(ctx))
		answer.Committed = append(answer.Committed, word(client.EndTransaction(ctx, kgo.TryCommit)))

		session.Check(client.BeginTransaction())
		client.Produce(ctx, kgo.StringRecord("never sent"), nil)
		session.Check(client.AbortBufferedRecords(ctx))
		answer.Aborted = append(answer.Aborted, word(client.EndTransaction(ctx, kgo.TryAbort)))
	}
	return answer
}

func word(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
