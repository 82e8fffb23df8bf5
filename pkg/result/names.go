package result

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"strings"
	"unicode"

	"github.com/google/uuid"
)

// The files of a job folder and of a trial's.
const (
	ConfigFile    = "config.json"
	ResultFile    = "result.json"
	JobLog        = "job.log"
	TrialLog      = "trial.log"
	ExceptionFile = "exception.txt"
	RetriesFolder = "retries" // in a trial's: its earlier tries, 1, 2, ...
)

// letters are those of Harbor's trial names: none is taken for another
// (shortuuid's alphabet).
const letters = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// TrialName is the folder of a trial: the first 32 characters of the task's
// name, as Harbor has it, and 7 that follow from the task's folder, who acts
// (with the model) and the attempt, so that the same run again finds it.
func TrialName(task, folder, agent string, attempt int) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{folder, agent, strconv.Itoa(attempt)}, "\x00")))
	n := binary.BigEndian.Uint64(sum[:])
	var id [7]byte
	for i := range id {
		id[i] = letters[n%uint64(len(letters))]
		n /= uint64(len(letters))
	}
	name := []rune(strings.Map(func(r rune) rune {
		if r == '/' || r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, task))
	return strings.TrimRight(string(name[:min(len(name), 32)]), "_-") + "__" + string(id[:])
}

// NewID is the id of a trial or a job: a random UUID (RFC 9562).
func NewID() string { return uuid.NewString() }
