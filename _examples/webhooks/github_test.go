package main

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/watermill-once/ordering"
)

func TestGitHubPosition(t *testing.T) {
	t.Parallel()
	micros := time.Date(2019, 5, 15, 15, 20, 57, 0, time.UTC).UnixMicro()
	for name, test := range map[string]struct {
		body     string
		expected ordering.Position
	}{
		"an object with a time": {
			`{"delivery_id":"d","event":"issues","payload":{"action":"edited","repository":{"id":7},
				"issue":{"id":444500041,"updated_at":"2019-05-15T15:20:57Z"}}}`,
			ordering.Position{Entity: "issues/7/444500041", Version: micros, Clock: true},
		},
		"a time with an offset": {
			`{"delivery_id":"d","event":"branch_protection_rule","payload":{"action":"edited","repository":{"id":7},
				"rule":{"id":3,"updated_at":"2019-05-15T11:20:57.000-04:00"}}}`,
			ordering.Position{Entity: "branch_protection_rule/7/3", Version: micros, Clock: true},
		},
		"a Unix time": {
			`{"delivery_id":"d","event":"push","payload":{"ref":"refs/heads/main","repository":{"id":7,"pushed_at":1557933657}}}`,
			ordering.Position{Entity: "push/7/refs/heads/main", Version: micros, Clock: true},
		},
		"no repository": {
			`{"delivery_id":"d","event":"security_advisory","payload":{"action":"updated",
				"security_advisory":{"ghsa_id":"GHSA-1","updated_at":"2019-05-15T15:20:57Z"}}}`,
			ordering.Position{Entity: "security_advisory//GHSA-1", Version: micros, Clock: true},
		},
		"a deletion is the last of its second": {
			`{"delivery_id":"d","event":"issues","payload":{"action":"deleted","repository":{"id":7},
				"issue":{"id":1,"updated_at":"2019-05-15T15:20:57Z"}}}`,
			ordering.Position{Entity: "issues/7/1", Version: micros, Clock: true, TieBreak: "last"},
		},
		"the end of a job, whose time is that of its start": {
			`{"delivery_id":"d","event":"workflow_job","payload":{"action":"completed","repository":{"id":7},
				"workflow_job":{"id":1,"started_at":"2019-05-15T15:20:57Z"}}}`,
			ordering.Position{Entity: "workflow_job/7/1", Version: micros, Clock: true, TieBreak: "last"},
		},
		"no time of change, but another time": {
			`{"delivery_id":"d","event":"code_scanning_alert","payload":{"action":"reopened","repository":{"id":7},
				"alert":{"number":10,"created_at":"2019-05-15T15:20:57Z"}}}`,
			ordering.Position{Entity: "code_scanning_alert//d"},
		},
		"null for a time": {
			`{"delivery_id":"d","event":"workflow_job","payload":{"action":"queued","repository":{"id":7},
				"workflow_job":{"id":1,"started_at":null}}}`,
			ordering.Position{Entity: "workflow_job//d"},
		},
		"a time without a zone": {
			`{"delivery_id":"d","event":"issues","payload":{"action":"edited","repository":{"id":7},
				"issue":{"id":1,"updated_at":"2019-05-15T15:20:57"}}}`,
			ordering.Position{Entity: "issues//d"},
		},
		"a kind that tells no time": {
			`{"delivery_id":"d","event":"star","payload":{"action":"deleted","starred_at":null,"repository":{"id":7}}}`,
			ordering.Position{Entity: "star//d"},
		},
		"a kind not known": {
			`{"delivery_id":"d","event":"brand_new","payload":{}}`,
			ordering.Position{Entity: "brand_new//d"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			position, err := githubPosition(message.NewMessage("d", []byte(test.body)))
			require.NoError(t, err)
			require.Equal(t, test.expected, position)
		})
	}
}

func TestGitHubPositionOfWhatIsNoDelivery(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `{}`, `[]`, `{"event":"star"}`, `{"delivery_id":"d"}`, `{"delivery_id":"d","event":"star"`} {
		_, err := githubPosition(message.NewMessage("d", []byte(body)))
		require.Error(t, err, body)
	}
}

func TestGitHubChange(t *testing.T) {
	t.Parallel()
	for body, expected := range map[string]change{
		`{"event":"star","payload":{"action":"deleted"}}`: {Status: "star.deleted", Amount: 20},
		`{"event":"push","payload":{}}`:                   {Status: "push", Amount: 2},
	} {
		change, err := githubSource.read([]byte(body))
		require.NoError(t, err)
		require.Equal(t, expected, change)
	}
}
