package dedupe_test

import (
	"context"
	"encoding/json"
)

func notFound(context.Context, string) (json.RawMessage, bool, error) { return nil, false, nil }
