package broker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
)

// redis is watermill-redisstream: a stream for each topic, which is never trimmed, so that a group that is new gets all of it. A
// message is as safe as the server's persistence: with appendonly yes and appendfsync always it is on disk when Publish returns;
// with the defaults of redis.conf a crash of the server takes messages with it.
func redis(a *address) opener {
	// How long an entry may be in a consumer's hands before another claims it: longer than handlers need, retries included. It is also
	// how long the entries of a consumer that has died wait.
	idle := a.duration("ack_wait", ackWait, time.Second)
	database, err := strconv.Atoi(a.path)
	if a.path != "" && (err != nil || database < 0) {
		a.fault("the path is not the number of a database")
	}
	options := goredis.Options{Addr: a.oneHost("6379"), DB: database, ContextTimeoutEnabled: true}
	if a.user != nil {
		options.Username, options.Password = a.user.Username(), a.password()
	}
	if a.scheme == "rediss" {
		options.TLSConfig = &tls.Config{ServerName: options.Addr[:max(0, strings.LastIndex(options.Addr, ":"))]}
	}
	return func(ctx context.Context, logger watermill.LoggerAdapter) (*Broker, error) {
		if err := reach(ctx, options.Addr); err != nil {
			return nil, err
		}
		client, err := within(ctx, func() (*goredis.Client, error) {
			options := options
			options.DialTimeout = left(ctx) // TLS looks at no context
			client := goredis.NewClient(&options)
			if err := client.Ping(ctx).Err(); err != nil {
				return nil, errors.Join(err, client.Close())
			}
			return client, nil
		}, func(late *goredis.Client) { _ = late.Close() })
		if err != nil {
			return nil, err
		}
		plugin, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, logger)
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		return &Broker{
			Publisher: plugin,
			subscribe: func(group, _ string) (message.Subscriber, error) {
				return redisstream.NewSubscriber(redisstream.SubscriberConfig{
					Client:        &redisReader{UniversalClient: goredis.NewClient(&options)}, // its own: the plugin closes it
					ConsumerGroup: group,

					// Each its own name: two of one name would take each other's entries for their own.
					Consumer:      watermill.NewUUID(),
					OldestId:      "0",
					Unmarshaller:  redisUnmarshaler{},
					MaxIdleTime:   idle,
					ClaimInterval: min(idle/2, 5*time.Second),

					NackResendSleep:               100 * time.Millisecond,
					DisableIndefiniteInitialBlock: true, // which no Close would end
				}, logger)
			},
			create: func(ctx context.Context, topic string, groups []string) error {
				for _, group := range groups {
					err := client.XGroupCreateMkStream(ctx, topic, group, "0").Err()
					if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
						return err
					}
				}
				return nil
			},
			close: plugin.Close,
		}, nil
	}
}

// redisReader closes when the read that is under way has ended. The plugin does not wait for it, and would log that it failed.
type redisReader struct {
	goredis.UniversalClient
	reading sync.RWMutex
}

func (r *redisReader) XReadGroup(ctx context.Context, args *goredis.XReadGroupArgs) *goredis.XStreamSliceCmd {
	r.reading.RLock()
	defer r.reading.RUnlock()
	return r.UniversalClient.XReadGroup(ctx, args)
}

func (r *redisReader) Close() error {
	r.reading.Lock()
	defer r.reading.Unlock()
	return r.UniversalClient.Close()
}

// redisUnmarshaler never fails: after an error the plugin ends the subscription. An entry that is not Watermill's has the JSON of
// its fields as payload.
type redisUnmarshaler struct{}

func (redisUnmarshaler) Unmarshal(values map[string]any) (*message.Message, error) {
	msg, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(values)
	if err == nil {
		return msg, nil
	}
	payload, jsonErr := json.Marshal(values)
	return undecoded(payload, errors.Join(err, jsonErr).Error()), nil
}
