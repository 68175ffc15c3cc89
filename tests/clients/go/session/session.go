// Package session is shared by the programs: their argument, their answer, and its output.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Deadline limits a whole session.
const Deadline = 90 * time.Second

// Arguments is the JSON argument of a program.
type Arguments struct {
	Bootstrap string `json:"bootstrap"`
	Topic     string `json:"topic"`
	Group     string `json:"group"`
	// Count is the number of records per codec.
	Count int `json:"count"`
	// Newest selects the newest protocol versions if the client's default is older.
	Newest bool `json:"newest"`
	// File holds the token of the next login.
	File string `json:"file"`
	// LastsMs is the time for which records are sent.
	LastsMs int `json:"lasts_ms"`
}

// Record is an acknowledged or consumed record.
type Record struct {
	Partition int    `json:"partition"`
	Offset    int64  `json:"offset"`
	Key       string `json:"key"`
	Value     string `json:"value"`
	Trace     string `json:"trace"`
}

// Partitions are the partitions of each member, by member ID.
type Partitions map[string][]int

// Answer is the JSON that a program prints.
type Answer struct {
	Produced []Record `json:"produced"`
	Consumed []Record `json:"consumed"`
	// First, Second and Last: the owners of the partitions with one member, with two, and with the remaining one.
	First  Partitions `json:"first"`
	Second Partitions `json:"second"`
	Last   Partitions `json:"last"`
	// Committed and Ends: offsets by partition.
	Committed map[int]int64 `json:"committed"`
	Ends      map[int]int64 `json:"ends"`
	// Lag is the sum over all partitions, as the client computes it.
	Lag    int64             `json:"lag"`
	Sought Record            `json:"sought"`
	State  string            `json:"state"`
	Config map[string]string `json:"config"`
	// Gone: neither the group nor the topic exists after their deletion.
	Gone bool `json:"gone"`
}

// Values are the payloads of a codec's records; repetition makes them worth compressing.
func Values(codec string, count int) []string {
	values := make([]string, count)
	for n := range values {
		values[n] = fmt.Sprintf("%s %d %s", codec, n, "again and again and again and again")
	}
	return values
}

// Check ends the program with the error.
func Check(err error) {
	if err != nil {
		panic(err)
	}
}

// Must returns the value, or ends the program with the error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Until calls the function until it returns true.
func Until(ctx context.Context, what string, ready func() bool) {
	for !ready() {
		select {
		case <-ctx.Done():
			panic(errors.New("waited in vain: " + what))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Run plays the session and prints its answer.
func Run[T any](play func(context.Context, Arguments) T) {
	var asked Arguments
	Check(json.Unmarshal([]byte(os.Args[1]), &asked))
	ctx, cancel := context.WithTimeout(context.Background(), Deadline)
	defer cancel()
	Check(json.NewEncoder(os.Stdout).Encode(play(ctx, asked)))
}
