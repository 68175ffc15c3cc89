// franz-go with tokens: reads the token from a file before each login, and sends records for a time. Answers with their
// number, or the error.
package main

import (
	"context"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"

	"korvet/clients/session"
)

// Sent is the answer.
type Sent struct {
	Sent  int    `json:"sent"`
	Error string `json:"error"`
}

func main() { session.Run(play) }

func play(ctx context.Context, asked session.Arguments) Sent {
	login := func(context.Context) (oauth.Auth, error) {
		token, err := os.ReadFile(asked.File)
		return oauth.Auth{Token: string(token), Extensions: map[string]string{"traceId": "t"}}, err
	}
	client := session.Must(kgo.NewClient(
		kgo.SeedBrokers(asked.Bootstrap), kgo.DefaultProduceTopic(asked.Topic), kgo.SASL(oauth.Oauth(login)),
	))
	defer client.Close()
	// Without this, the client tries to log in again until the end of the context.
	if err := client.Ping(ctx); err != nil {
		return Sent{Error: err.Error()}
	}
	end := time.Now().Add(time.Duration(asked.LastsMs) * time.Millisecond)
	sent := 0
	for ; sent == 0 || time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		session.Check(client.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr())
		sent++
	}
	return Sent{Sent: sent}
}
