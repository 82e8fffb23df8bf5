package job

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestParseDeadline(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for s, want := range map[string]time.Time{
		"": {}, "none": {}, "1700000060": now.Add(time.Minute), "3h": now.Add(3 * time.Hour), "2023-11-14T22:14:20Z": now.Add(time.Minute),
	} {
		if got, err := ParseDeadline(s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"tomorrow", "-3h", "0", "-5", "18:00"} {
		if got, err := ParseDeadline(s, now); err == nil {
			t.Errorf("%q is %v", s, got)
		}
	}
}

// The cause of the end says when the job ends, and what comes of it.
func TestUntil(t *testing.T) {
	for name, tc := range map[string]struct {
		flag string
		env  map[string]string
		ends bool
	}{
		"no job":             {"", nil, false},
		"soon":               {"1m", nil, true},
		"Slurm says so":      {"", map[string]string{"SLURM_JOB_END_TIME": "1700000000"}, true},
		"not minded":         {"none", map[string]string{"SLURM_JOB_END_TIME": "1700000000"}, false},
		"one's own is later": {"10h", map[string]string{"SLURM_JOB_END_TIME": "1700000000"}, false},
	} {
		said := make(chan string, 1)
		ctx, cancel, err := here(t, nil, tc.env).Until(t.Context(), tc.flag, "run", func(s string) { said <- s })
		if err != nil {
			t.Fatal(err)
		}
		if !tc.ends {
			cancel()
		}
		<-ctx.Done()
		var e Ending
		if is := errors.As(context.Cause(ctx), &e); is != tc.ends || is && (e.What != "run" || e.Error() != <-said) {
			t.Errorf("%s: %v", name, context.Cause(ctx))
		}
		cancel()
	}
	if _, _, err := here(t, nil, nil).Until(t.Context(), "tomorrow", "run", nil); err == nil {
		t.Error("tomorrow is a time")
	}
}
