package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"fence/pkg/dockerfile"
)

// fetch gets what ADD URL names, as BuildKit does: mode 0600, the server's
// time of last change.
func fetch(ctx context.Context, urls []dockerfile.URL, checksum, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, u := range urls {
		if err := fetchOne(ctx, u, checksum, filepath.Join(dir, u.Name)); err != nil {
			return fmt.Errorf("ADD %s: %w", u.URL, err)
		}
	}
	return nil
}

// fetchMax is how much ADD takes from a server, in bytes.
const fetchMax = 8 << 30

func fetchOne(ctx context.Context, u dockerfile.URL, checksum, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.URL, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(resp.Body, fetchMax+1))
	if err != nil {
		return err
	}
	if n > fetchMax {
		return fmt.Errorf("it is larger than %d GiB", fetchMax>>30)
	}
	if want, ok := strings.CutPrefix(checksum, "sha256:"); ok && want != hex.EncodeToString(h.Sum(nil)) {
		return fmt.Errorf("the checksum is sha256:%x, not %s", h.Sum(nil), checksum)
	}
	at := time.Unix(0, 0)
	if t, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		at = t
	}
	return os.Chtimes(name, at, at)
}
