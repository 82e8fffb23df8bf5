package session

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// run has the domain run one command and stays with it until it has ended,
// or must. fds are the client's: what the command reads and the two that it
// writes, then the other sides of those two. The deadlines are kept here, as
// a command can stop its leader.
func (d *domain) run(c *conn, cmd *Command, fds []int) {
	answer := reply{Error: errorf(CodeUsage, "a command comes with three pipes, or a terminal's size")}
	give := fds
	var drains []int
	switch {
	case cmd.TTY != nil && len(fds) == 0:
		master, slave, err := d.openTerminal(*cmd.TTY)
		if err != nil {
			answer.Error = err
			break
		}
		give = []int{slave}
		err2 := c.send(reply{Terminal: true}, master)
		unix.Close(master)
		if err2 != nil {
			answer.Error = nil
			break
		}
		answer = d.follow(c, cmd, give)
		give = nil
	case cmd.TTY == nil && len(fds) == 5 && pipes(fds):
		give, drains = fds[:3], fds[3:]
		answer = d.follow(c, cmd, give)
		give = nil
	}
	closeAll(give)
	if answer.Error != nil || answer.Exit != nil {
		_ = c.send(answer)
	}
	// The client takes what is in the pipes, in its own time; what stays in the
	// background writes to nobody from then on, but is not killed for it
	// (SIGPIPE).
	if len(drains) > 0 {
		for {
			var q request
			if _, err := c.recv(&q); err != nil {
				break
			}
		}
	}
	for _, fd := range drains {
		d.drain(fd)
	}
}

// pipes says whether these are pipes: a file or a terminal would be one of
// the caller's in the hands of the command.
func pipes(fds []int) bool {
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			return false
		}
	}
	return true
}

// drain reads what nobody else does, at no great pace: it costs the broker
// little whoever writes. A domain has its share of the broker's descriptors;
// what it leaves beyond that gets SIGPIPE.
func (d *domain) drain(fd int) {
	polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, err := unix.Poll(polled, 0)
	if err == nil && polled[0].Revents == unix.POLLHUP || unix.SetNonblock(fd, true) != nil { // nobody writes
		unix.Close(fd)
		return
	}
	share := int32(min(256, d.b.nofile/4/uint64(len(d.b.domains))))
	if d.drains.Add(1) > share {
		d.drains.Add(-1)
		unix.Close(fd)
		return
	}
	f := os.NewFile(uintptr(fd), "drain")
	go func() {
		defer d.drains.Add(-1)
		defer f.Close()
		buf := make([]byte, 64<<10)
		for err := error(nil); err == nil; _, err = f.Read(buf) {
			time.Sleep(10 * time.Millisecond)
		}
	}()
}

// follow closes fds, sees the command through, and says how it ended. No
// answer: there is nobody to tell.
func (d *domain) follow(c *conn, cmd *Command, fds []int) reply {
	r := &run{news: make(chan news, 2)}
	d.mu.Lock()
	d.last++
	id := d.last
	d.runs[id] = r
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.runs, id)
		d.mu.Unlock()
	}()
	err := d.c.send(order{ID: id, Start: cmd}, fds...)
	closeAll(fds)
	if err != nil {
		d.end("lost", "its leader takes no orders")
		return reply{Error: d.over()}
	}

	type heard struct {
		signal int
		err    error
	}
	client := make(chan heard)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			var q request
			more, err := c.recv(&q)
			closeAll(more)
			select {
			case client <- heard{q.Signal, err}:
			case <-stop:
				return
			}
			if err != nil {
				return
			}
		}
	}()

	timer := time.NewTimer(patienceStart)
	defer timer.Stop()
	const (
		starting = iota // the leader has not answered
		running
		ending // told to end
		killed
	)
	state, reason, timedOut, gone := starting, "", false, false
	end := func(why string, sig unix.Signal) {
		if state < ending {
			state, reason = ending, why
			_ = d.c.send(order{ID: id, Signal: int(sig), Last: true})
			timer.Reset(graceOf(cmd))
		}
	}
	for {
		select {
		case n := <-r.news:
			switch {
			case n.Started && state == starting:
				state = running
				if timer.Stop(); cmd.Timeout > 0 {
					timer.Reset(time.Duration(cmd.Timeout) * time.Millisecond)
				}
				continue
			case n.Started:
				continue // told to end before it began: it will
			case gone:
				return reply{}
			case n.Failed != nil:
				return reply{Error: n.Failed}
			}
			n.Exit.TimedOut, n.Exit.Reason = timedOut, reason
			return reply{Exit: n.Exit}
		case <-d.gone:
			if gone {
				return reply{}
			}
			return reply{Error: d.over()}
		case h := <-client:
			switch {
			case h.err != nil:
				client, gone = nil, true
				sig := unix.SIGTERM
				if cmd.TTY != nil {
					sig = unix.SIGHUP
				}
				end("the client is gone", sig)
			case h.signal > 0 && h.signal <= 64:
				_ = d.c.send(order{ID: id, Signal: h.signal})
			}
		case <-timer.C:
			switch state {
			case running:
				timedOut = true
				end("it did not end in time", unix.SIGTERM)
			case ending:
				state = killed
				_ = d.c.send(order{ID: id, Last: true, Kill: true})
				timer.Reset(patience)
			default:
				d.end("lost", "its leader does not answer")
			}
		}
	}
}

func graceOf(cmd *Command) time.Duration {
	if cmd.Grace == 0 {
		return graceNormal
	}
	return time.Duration(cmd.Grace) * time.Millisecond
}
