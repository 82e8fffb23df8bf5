package registry

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"fence/pkg/internal/blobs"
)

// RateLimited is that a registry takes no more requests, and its mirrors have
// not helped. Until then no request is made: whoever waits can do other work.
type RateLimited struct {
	Registry string
	Until    time.Time // when it is worth another try
	Limit    string    // as the registry writes it, such as 100;w=21600 (in seconds), or as the person does; may be ""
	Mirrors  string    // what came of asking them; may be ""
}

func (e *RateLimited) Error() string {
	text := "the registry " + e.Registry + " takes no more requests for now"
	if e.Limit != "" {
		text += " (its limit is " + e.Limit + ")"
	}
	return text + e.Mirrors + ": it is asked again after " + stamp(e.Until) + "; docker login, a --mirror or a local --base help"
}

// Unreachable is a registry that failed again and again, in a way that may
// pass.
type Unreachable struct {
	Registry string
	Until    time.Time // when it is worth another try
	Err      error     // the last
	Mirrors  string    // as of RateLimited
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("the registry %s cannot be asked, the last time because of: %v%s: it is asked again after %s; a --mirror or a local --base help", e.Registry, e.Err, e.Mirrors, stamp(e.Until))
}

func (e *Unreachable) Unwrap() error { return e.Err }

// Until is when an error is worth another try, of a registry that is left alone
// until then. Other errors have no such time.
func Until(err error) (time.Time, bool) {
	var limited *RateLimited
	var away *Unreachable
	switch {
	case errors.As(err, &limited):
		return limited.Until, true
	case errors.As(err, &away):
		return away.Until, true
	}
	return time.Time{}, false
}

// Limited says that an error is a registry's limit, and no failure.
func Limited(err error) bool {
	var limited *RateLimited
	return errors.As(err, &limited)
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Refused is a registry's answer that will be the same the next time: there is
// no such image, or it is not for whoever asks.
type Refused struct {
	Registry string
	Status   int    // 404, 401, 403, ...
	Text     string // one line, with what to do
}

func (e *Refused) Error() string { return e.Text }

// transient says whether trying again may help.
func transient(err error) bool {
	var limited *RateLimited
	var status *transport.Error
	var dns *net.DNSError
	var timeout net.Error
	var bad blobs.Wrong
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &limited), errors.As(err, &cert), errors.Is(err, errRedirect), onDisk(err):
		return false
	case errors.As(err, &status):
		return status.StatusCode >= 500 || status.StatusCode == http.StatusRequestTimeout
	case errors.As(err, &dns):
		return !dns.IsNotFound
	case errors.As(err, &bad), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, net.ErrClosed), errors.Is(err, errStalled):
		return true
	case errors.As(err, &timeout):
		return timeout.Timeout()
	}
	return false
}

// onDisk says that it is this side which failed, at keeping what it got.
func onDisk(err error) bool {
	var path *fs.PathError
	var link *os.LinkError
	return errors.As(err, &path) || errors.As(err, &link)
}

// tooMany says that a registry means 429 by another status.
func tooMany(err error) bool {
	var status *transport.Error
	if errors.As(err, &status) {
		for _, d := range status.Errors {
			if d.Code == transport.TooManyRequestsErrorCode {
				return true
			}
		}
	}
	return false
}

// refusal says what an answer means that will not change; help is what is known
// of the credentials.
func refusal(registry string, err error, help string) error {
	var status *transport.Error
	switch {
	case onDisk(err):
		return err
	case errors.As(err, &status) && status.StatusCode == http.StatusNotFound:
		return &Refused{registry, status.StatusCode, "the registry " + registry + " has no such image or tag: check the name in the Dockerfile"}
	case errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden):
		return &Refused{registry, status.StatusCode, fmt.Sprintf("the registry %s does not give it out (%d): check the name, or log in with docker login %[1]s%[3]s", registry, status.StatusCode, help)}
	}
	var dns *net.DNSError
	if errors.As(err, &dns) || errors.Is(err, syscall.ENETUNREACH) {
		return &Refused{registry, 0, fmt.Sprintf("the registry %s cannot be reached from this node: %v: check the name, fetch it where there is a network (sifbuild plan --fetch), or give a local image with --base", registry, short(err))}
	}
	return &Refused{registry, 0, fmt.Sprintf("the registry %s: %v", registry, short(err))}
}

// short is a registry's error on one line: without a page of HTML, and without
// the query of a URL, which may be a signature that lets anybody read.
func short(err error) error {
	var status *transport.Error
	var at *url.Error
	switch {
	case errors.As(err, &status):
		text := fmt.Sprintf("status %d", status.StatusCode)
		if len(status.Errors) > 0 {
			text += fmt.Sprintf(", %s", status.Errors[0].Code)
		}
		if status.Request != nil {
			text = fmt.Sprintf("%s of %s: %s", status.Request.Method, status.Request.URL.Path, text)
		}
		return errors.New(text)
	case errors.As(err, &at):
		where := "?"
		if u, e := url.Parse(at.URL); e == nil {
			where = u.Host + u.Path
		}
		return fmt.Errorf("%s of %s: %w", strings.ToUpper(at.Op), where, short(at.Err))
	}
	return err
}
