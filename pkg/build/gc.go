package build

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// GCOptions say what of a cache may go.
type GCOptions struct {
	Cache  string
	Unused time.Duration // what nobody has used for so long; 0: whatever its age
	Keep   int64         // bytes that may stay, the last used first; 0: no bound
	DryRun bool
}

// Gone is a file that GC removed, or would.
type Gone struct {
	Schema string    `json:"schema"`
	Path   string    `json:"path"`
	Bytes  int64     `json:"bytes"`
	Used   time.Time `json:"used"`
}

// GoneSchema names the record of one removed file.
const GoneSchema = "sifbuild.gone/v1"

// GC removes what has not been used for long from a cache: images with their
// reports and logs, steps, bases, downloads. A file counts as used when it was
// made or a build took it (its time of last change is set then). What a build
// under way still needs it makes again.
func GC(o GCOptions) ([]Gone, error) {
	if _, err := os.Stat(filepath.Join(o.Cache, "sif")); err != nil {
		return nil, fmt.Errorf("%s is no cache of sifbuild: %w", o.Cache, err)
	}
	var all []Gone
	for _, dir := range []string{"sif", "layers", "base", "downloads"} {
		err := filepath.WalkDir(filepath.Join(o.Cache, dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasSuffix(p, ".json") && dir == "sif" {
				return ignoreGone(err)
			}
			info, err := d.Info()
			if err != nil {
				return ignoreGone(err)
			}
			all = append(all, Gone{GoneSchema, p, info.Size(), info.ModTime()})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Gone) int { return cmp.Or(b.Used.Compare(a.Used), strings.Compare(a.Path, b.Path)) })
	var gone []Gone
	var kept int64
	for _, f := range all {
		old := time.Since(f.Used) >= o.Unused
		if !old || o.Keep > 0 && kept+f.Bytes <= o.Keep {
			kept += f.Bytes
			continue
		}
		gone = append(gone, f)
		if o.DryRun {
			continue
		}
		// First the report: an image without one is built again.
		if key, ok := strings.CutSuffix(f.Path, ".sif"); ok {
			log := filepath.Join(o.Cache, "logs", filepath.Base(key)+".log")
			for _, beside := range []string{key + ".json", log} {
				if err := os.Remove(beside); ignoreGone(err) != nil {
					return gone, err
				}
			}
		}
		if err := os.Remove(f.Path); ignoreGone(err) != nil {
			return gone, err
		}
	}
	return gone, nil
}

// use marks something of the cache as used now. Where that is not allowed, it
// is collected earlier.
func (b *Builder) use(path string) {
	now := time.Now()
	if st, err := os.Stat(path); err == nil && now.Sub(st.ModTime()) > time.Hour {
		_ = os.Chtimes(path, now, now)
	}
}

func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
