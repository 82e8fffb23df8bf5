# What an agent may try against the verifier's places and processes. Prints one
# line for each attempt, "NAME RESULT": ok, an errno, or what was seen.
import errno, os, socket, subprocess

UMOUNT2, MOUNT, PTRACE, UNSHARE, RENAMEAT2 = 166, 165, 101, 272, 316


def call(number, *args):
    """A system call that Python has no name for."""
    script = "my @a = map { /^-?[0-9]+$/ ? 0 + $_ : $_ } @ARGV; print syscall(shift @a, @a) < 0 ? 0 + $! : 0"
    error = int(subprocess.run(["perl", "-e", script, str(number), *map(str, args)], capture_output=True, check=True).stdout)
    if error:
        raise OSError(error, "")


def attempt(name, f):
    try:
        print(name, f() or "ok", flush=True)
    except OSError as e:
        print(name, errno.errorcode[e.errno], flush=True)


def write(path):
    with open(path, "w") as f:
        f.write("1")


def remove(path):
    for name in os.listdir(path):
        (os.rmdir if os.path.isdir(f"{path}/{name}") else os.unlink)(f"{path}/{name}")
    os.rmdir(path)


def replace(path):
    os.rename(path, path + ".away")
    os.symlink("/tmp", path)


places = {"tests": "/tests", "reward": "/logs/verifier"}
for name, p in places.items():
    attempt(f"{name}.seen", lambda: ",".join(sorted(os.listdir(p))) or "empty")
    attempt(f"{name}.write", lambda: write(f"{p}/planted"))
    attempt(f"{name}.mkdir", lambda: os.mkdir(f"{p}/folder"))
    attempt(f"{name}.chmod", lambda: os.chmod(p, 0o777))
    attempt(f"{name}.umount", lambda: call(UMOUNT2, p, 2))
    attempt(f"{name}.mount", lambda: call(MOUNT, "x", p, "tmpfs", 0, 0))
    attempt(f"{name}.bind", lambda: call(MOUNT, "/tmp", p, 0, 4096, 0))
    attempt(f"{name}.remove", lambda: remove(p))
    attempt(f"{name}.replace", lambda: replace(p))
os.mkdir("/swap")
attempt("logs.exchange", lambda: call(RENAMEAT2, -100, "/swap", -100, "/logs", 2))
if not os.listdir("/swap"):
    os.rmdir("/swap")
attempt("logs.replace", lambda: replace("/logs"))
attempt("userns", lambda: call(UNSHARE, 0x10000000))

# Every process that is not of this domain: the leaders, the broker, the
# verifier's, the container's first.
mine = {int(p) for p in os.environ["MINE"].split()}
reached = {}
session = {int(p) for p in os.environ["SESSION"].split()}
for pid in session & {int(p) for p in os.listdir("/proc") if p.isdigit()}:
    if pid in mine or pid == os.getpid():
        continue
    for what in ("root/tests", "cwd/tests", "mem", "environ", "fd/0"):
        try:
            os.close(os.open(f"/proc/{pid}/{what}", os.O_RDONLY))
            result = "ok"
        except OSError as e:
            result = errno.errorcode[e.errno]
        reached.setdefault(what.partition("/")[0], set()).add(result)
    for what, f in (("kill", lambda: os.kill(pid, 9)), ("trace", lambda: call(PTRACE, 16, pid, 0, 0)), ("nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 5))):
        try:
            f()
            result = "ok"
        except ProcessLookupError:
            continue
        except OSError as e:
            result = errno.errorcode[e.errno]
        reached.setdefault(what, set()).add(result)
for what, results in sorted(reached.items()):
    print("others." + what, ",".join(sorted(results)))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))

# Frames on whatever descriptor there is, and on every Unix socket.
sent = 0
for fd in range(3, 256):
    try:
        os.write(fd, b"\0\0\0\x0b" + b'{"end":true}')
        sent += 1
    except OSError:
        pass
for line in open("/proc/net/unix").readlines()[1:]:
    path = line.split()[7:]
    if path:
        try:
            s = socket.socket(socket.AF_UNIX)
            s.connect("\0" + path[0][1:] if path[0].startswith("@") else path[0])
            sent += 1
        except OSError:
            pass
print("frames", sent)
