package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A person opens the page, sees deliveries arrive, presses Replay, and reads that nothing has changed. The tables say the same.
func TestReplayInABrowser(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t, 1280, 812)
	console := serveConsole(t)
	browser.open(t, console)
	require.Equal(t, "Live", browser.text(t, "#connection"))

	before := tablesIn(t, console)
	require.NotEmpty(t, before)
	browser.do(t,
		chromedp.Click[chromedp.CSS]("#rows tr:nth-child(4) button"),
		chromedp.WaitVisible[chromedp.CSS](`#result[data-state="unchanged"] .verdict`),
		chromedp.WaitVisible[chromedp.CSS]("#rows tr:first-child .tag"), // the replay, a delivery of its own
	)
	require.Equal(t, "Nothing changed", browser.text(t, "#result .verdict strong"))
	require.Equal(t, "No new row\nNo updated timestamp\nNo second e-mail", browser.text(t, "#result .facts"))
	require.Equal(t, before, tablesIn(t, console))

	if path := os.Getenv("WEBHOOKS_SCREENSHOT"); path != "" {
		browser.do(t, chromedp.Click[chromedp.CSS]("h1"))
		_, err := chromedp.Run(browser.context, chromedp.Evaluate[chromedp.Void](
			"Promise.all(document.getAnimations().map(a => a.finished)).then(() => null)", chromedp.EvalAwaitPromise))
		require.NoError(t, err)
		picture, err := chromedp.Run(browser.context, chromedp.CaptureScreenshot())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, picture, 0o644))
	}
}

// With its claims gone an event is a new one, and the page says what that has done.
func TestReplayOfAForgottenEventInABrowser(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t, 1280, 800)
	console := serveConsole(t)
	browser.open(t, console)
	event := browser.text(t, "#rows tr:first-child .event .id")
	console.exec(t, "delete from watermill_processed_events where event_id = $1", event)
	console.exec(t, "delete from ledger_entries where event_id = $1", event)
	browser.do(t,
		chromedp.Click[chromedp.CSS]("#rows tr:first-child button"),
		chromedp.WaitVisible[chromedp.CSS](`#result[data-state="changed"] .verdict`),
	)
	require.Equal(t, "3 rows changed", browser.text(t, "#result .verdict strong")) // an entry, and a claim of each consumer
	facts := browser.text(t, "#result .facts")
	require.Contains(t, facts, "Another number of rows")
	require.Contains(t, facts, "\nNo second e-mail")
	changes := browser.text(t, "#result .changes")
	require.Contains(t, changes, `+ {"card": "`)
	require.Contains(t, changes, event)
}

// At 360 pixels nothing is cut off, and the keyboard is enough.
func TestPageOnAPhone(t *testing.T) {
	t.Parallel()
	browser := startBrowser(t, 360, 740)
	console := serveConsole(t)
	browser.open(t, console)
	browser.do(t,
		chromedp.Focus[chromedp.CSS]("#rows tr:first-child button"),
		chromedp.KeyEvent("\r"),
		chromedp.WaitVisible[chromedp.CSS](`#result[data-state="unchanged"] .verdict`),
	)
	cut, err := chromedp.Run(browser.context, chromedp.Evaluate[[]string](`
[...document.querySelectorAll("main *, header *")]
  .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > 348.5)
  .map(e => e.outerHTML)`))
	require.NoError(t, err)
	require.Empty(t, cut)
}

// browser is one tab of a Chromium of the test's own.
type browser struct{ context context.Context }

func startBrowser(t *testing.T, width, height int64) browser {
	t.Helper()
	path, err := exec.LookPath(cmp.Or(os.Getenv("CHROMIUM"), "chromium"))
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "CI needs Chromium: %v", err)
		t.Skipf("CHROMIUM names no browser: %v", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path),
		chromedp.UserDataDir(t.TempDir()),
		chromedp.DisableGPU,
		chromedp.NoSandbox, // which Chromium cannot use as root
		chromedp.Flag("headless", "new"),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
	)
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	tab, _ := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		require.NoError(t, chromedp.Cancel(tab))
		stop()
	})
	require.NoError(t, chromedp.Do(tab, chromedp.EmulateViewport(width, height)))
	limited, cancel := context.WithTimeout(tab, 2*time.Minute)
	t.Cleanup(cancel)
	return browser{limited}
}

// open waits until the page shows all that the console's plan holds.
func (b browser) open(t *testing.T, c consoleAt) {
	t.Helper()
	last := chromedp.CSS(fmt.Sprintf("#rows tr:nth-child(%d)", c.deliveries))
	b.do(t, chromedp.Navigate(c.address), chromedp.WaitVisible(last))
}

func (b browser) do(t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	require.NoError(t, chromedp.Do(b.context, steps...))
}

func (b browser) text(t *testing.T, selector chromedp.CSS) string {
	t.Helper()
	text, err := chromedp.Run(b.context, chromedp.Text(selector))
	require.NoError(t, err)
	return text
}

// tablesIn gives all that a replay could change, as text.
func tablesIn(t *testing.T, c consoleAt) (content []string) {
	t.Helper()
	conn := c.connect(t)
	rows, err := conn.Query(t.Context(), `
select to_jsonb(c)::text || xmin from cards c
union all select to_jsonb(l)::text || xmin from ledger_entries l
union all select to_jsonb(e)::text || xmin from emails e
union all select to_jsonb(p)::text || xmin from watermill_processed_events p
order by 1`)
	require.NoError(t, err)
	content, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return content
}

func (c consoleAt) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	tag, err := c.connect(t).Exec(t.Context(), query, args...)
	require.NoError(t, err)
	require.NotZero(t, tag.RowsAffected())
}

// connect sees the tables of the run.
func (c consoleAt) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.database)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	_, err = conn.Exec(t.Context(), `
select set_config('search_path', nspname, false)
from pg_namespace
where nspname like 'webhooks\_%'`)
	require.NoError(t, err)
	return conn
}
