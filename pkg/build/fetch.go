package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	godigest "github.com/opencontainers/go-digest"

	"fence/pkg/dockerfile"
	"fence/pkg/tree"
)

// fetch gets what ADD URL names, as BuildKit does: mode 0600, the server's
// time of last change. In dir the files are numbered: two URLs can have one
// name, and a name can look like a pattern. A server that sends nothing for as
// long as idle has lost; 0: it is waited for.
func fetch(ctx context.Context, urls []dockerfile.URL, checksum, dir string, idle time.Duration) ([]tree.Match, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var files []string
	for i, u := range urls {
		files = append(files, strconv.Itoa(i))
		if err := fetchOne(ctx, u, checksum, filepath.Join(dir, files[i]), idle); err != nil {
			return nil, err
		}
	}
	matches, err := tree.Select(dir, tree.Selection{Sources: files})
	for i := range matches {
		matches[i].Source, matches[i].Name = urls[i].URL, urls[i].Name
	}
	return matches, err
}

// FetchError is a URL of ADD that was not got.
type FetchError struct {
	Status int // HTTP's; 0 if there was no answer, or not all of one
	Err    error
}

func (e *FetchError) Error() string { return e.Err.Error() }
func (e *FetchError) Unwrap() error { return e.Err }

// fetchMax is how much ADD takes from a server, in bytes.
const fetchMax = 8 << 30

func fetchOne(ctx context.Context, u dockerfile.URL, checksum, name string, idle time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	moving := func() {}
	if idle > 0 {
		t := time.AfterFunc(idle, func() { cancel(&IdleError{After: idle}) })
		defer t.Stop()
		moving = func() { t.Reset(idle) }
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err // the URL is in the instruction already
		}
		return cmp.Or(context.Cause(ctx), error(&FetchError{0, err}))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return &FetchError{resp.StatusCode, fmt.Errorf("the server answers %s", resp.Status)}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	want, algorithm := godigest.Digest(checksum), godigest.Canonical
	if checksum != "" {
		if err := want.Validate(); err != nil {
			return err
		}
		algorithm = want.Algorithm()
	}
	check := algorithm.Hash()
	n, err := io.Copy(io.MultiWriter(f, check), io.LimitReader(reader(func(p []byte) (int, error) {
		n, err := resp.Body.Read(p)
		moving()
		return n, err
	}), fetchMax+1))
	switch {
	case full(err):
		return err
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return &FetchError{0, fmt.Errorf("the answer was cut short: %w", err)}
	case n > fetchMax:
		return &FetchError{resp.StatusCode, fmt.Errorf("it is larger than %d GiB", fetchMax>>30)}
	}
	if got := godigest.NewDigest(algorithm, check); checksum != "" && got != want {
		return &FetchError{resp.StatusCode, fmt.Errorf("the checksum is %s, not %s", got, want)}
	}
	at := time.Unix(0, 0)
	if t, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		at = t
	}
	return os.Chtimes(name, at, at)
}

type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }
