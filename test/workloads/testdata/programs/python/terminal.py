"""A shell in a pseudo-terminal: what pexpect and notebooks do."""
import os
import pty
import termios

pid, fd = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "test -t 0 && stty size && tty | sed 's/[0-9]*$/N/'"])
termios.tcsetwinsize(fd, (30, 100))
out = b""
while True:
    try:
        data = os.read(fd, 1000)
    except OSError:  # the shell has gone
        break
    if not data:
        break
    out += data
print(out.decode().replace("\r", "").split()[-1], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
