package workloads

// Table is every workload. The longest come first, for they run side by side.
var Table = []Workload{
	{Name: "pip", About: "python venv; pip install from a wheelhouse, uninstall", As: Root, Slow: true,
		Run: `python3 $programs/python/wheel.py; python3 -m venv v; v/bin/pip install -q --no-index --find-links wheels demo
v/bin/demo; v/bin/pip uninstall -qy demo; test -e v/bin/demo || echo gone`,
		Want: "demo from a wheel\ngone\n", Less: MakeSym, Breaks: `Permission denied: 'lib' -> '/tmp/w/pip/v/lib64'`},
	{Name: "npm", About: "npm pack, npm install from a file, npm test", As: Root, Slow: true,
		Run: `mkdir dep app; cd dep; echo '{"name":"dep","version":"1.0.0","bin":{"dep":"cli.js"}}' >package.json
printf '#!/usr/bin/env node\nconsole.log("dep runs")\n' >cli.js; npm pack --silent
cd ../app; echo '{"name":"app","version":"1.0.0","scripts":{"test":"dep"}}' >package.json
npm install --offline --loglevel=error --no-audit --no-fund ../dep/dep-1.0.0.tgz >/dev/null; npm test --silent`,
		Want: "dep-1.0.0.tgz\ndep runs\n", Less: MakeSym, Breaks: `EACCES: permission denied, symlink`},
	{Name: "cargo", About: "cargo run and test, offline: a build script, a library, threads", As: User, Slow: true,
		Run:  `cp -r $programs/rust/. .; cargo --offline run -q; cargo --offline test -q | grep -o 'ok. 1 passed'`,
		Want: "sum 42 of 42\nok. 1 passed\n", Less: Refer, Breaks: `libadd-.*\.rmeta: Invalid cross-device link`},
	{Name: "go", About: "go build and test, offline", As: User, Slow: true,
		Run:  `export GOPROXY=off; cp $programs/go/* .; printf 'module sum\ngo 1.19\n' >go.mod; go build; ./sum; go test | cut -f1,2`,
		Want: "sum 5050\nPASS\nok  \tsum\n", Less: ExecuteMade, Breaks: `./sum: Permission denied`},
	{Name: "cmake", About: "cmake, g++ with threads, ctest", As: Root, Slow: true,
		Run:  `cmake -S $programs/cmake -B build >log; cmake --build build >>log; build/sum; cd build; ctest | grep passed`,
		Want: "sum 42\n100% tests passed, 0 tests failed out of 1\n", Less: RemoveFile, Breaks: `(?s)could not be removed:\s+Permission denied`},
	{Name: "maven", About: "maven, offline: compile with the plugins of Debian's repository", As: User, Slow: true,
		Run: `mkdir -p src/main/java; cp $programs/java/Sum.java src/main/java; cp $programs/java/pom.xml .
mvn -o -B -q -Dmaven.repo.local=/usr/share/maven-repo org.apache.maven.plugins:maven-compiler-plugin:3.10.1:compile >log 2>&1 || { cat log; exit 1; }
java -cp target/classes Sum`,
		Want: "sum 42\n", Less: MakeDir, Breaks: `Permission denied`},
	{Name: "gradle", About: "gradle, offline, with its daemon", As: User, Slow: true,
		Run: `mkdir -p src/main/java; cp $programs/java/Sum.java src/main/java; echo "apply plugin: 'java'" >build.gradle
gradle --offline -q classes >log 2>&1 || { cat log; exit 1; }; java -cp build/classes/java/main Sum`,
		Want: "sum 42\n", Denied: `Could not determine a usable local IP for this machine`, Open: loopback},
	{Name: "java", About: "java: threads, files, child processes", As: User, Slow: true,
		Run:  `ecj -17 -proc:none -d . $programs/java/Threads.java; java Threads`,
		Want: "sum 42, child text, exit 0\n", Less: Clone3, Breaks: `pthread_create failed \(EPERM\)`},
	{Name: "postgres", About: "postgres on a Unix socket: initdb, pg_ctl, psql", As: User, Slow: true, // it refuses to run as root
		Run: `PATH=$PATH:$(echo /usr/lib/postgresql/*/bin); initdb -D data -A trust >log
pg_ctl -D data -w -l log -o "-c listen_addresses='' -k $PWD" start >>log || { cat log >&2; exit 1; }
psql -h $PWD -d postgres -Atc 'create table t(n int); insert into t select generate_series(1, 1000); select sum(n) from t'
pg_ctl -D data -w stop >>log`,
		Want: "CREATE TABLE\nINSERT 0 1000\n500500\n", Less: SysV, Breaks: `could not create shared memory segment: Operation not permitted`},
	{Name: "mariadb", About: "mariadb (MySQL) on a Unix socket", As: Root, Slow: true,
		Run: `o="--no-defaults --datadir=$PWD/data --socket=$PWD/socket --user=root"; q() { mysql --no-defaults -S socket -uroot "$@"; }
mysql_install_db $o --auth-root-authentication-method=normal --skip-test-db >log 2>&1 || { cat log; exit 1; }
mysqld $o --skip-networking --pid-file=$PWD/pid >>log 2>&1 &
until q -e 'select 1' >/dev/null 2>&1; do kill -0 $! 2>/dev/null || { cat log; exit 1; }; done
q -Ne 'create database d; use d; create table t(n int) engine=innodb; insert into t values (40), (2); select sum(n) from t'
q -e shutdown; wait $!`,
		Want: "42\n", Less: MakeSock, Breaks: `Bind on unix socket: Permission denied`},
	{Name: "redis", About: "redis on a Unix socket, background save",
		Run: `redis-server --port 0 --unixsocket $PWD/socket --daemonize no --dir $PWD >log 2>&1 & r() { redis-cli -s socket "$@"; }
until r ping >/dev/null 2>&1; do kill -0 $! 2>/dev/null || { cat log; exit 1; }; done
r set k 42; r get k; r bgsave; until r info persistence | grep -q bgsave_in_progress:0; do :; done; ls *.rdb; r shutdown nosave; wait $!`,
		Want: "OK\n42\nBackground saving started\ndump.rdb\n", Less: MakeSock, Breaks: `Failed opening Unix socket: bind: Permission denied`},
	{Name: "sqlite", About: "sqlite: write-ahead log and journal",
		Run: `sqlite3 db 'pragma journal_mode=wal; create table t(n); insert into t values(1),(2); pragma wal_checkpoint(truncate);
pragma journal_mode=delete; insert into t values(3); select sum(n) from t; pragma integrity_check'; ls`,
		Want: "wal\n0|0|0\ndelete\n6\nok\ndb\n", Less: RemoveFile, Breaks: `disk I/O error`},
	{Name: "nginx", About: "nginx and curl on a Unix socket",
		Run: `mkdir t; echo served >index.html; u=; test $(id -u) != 0 || u='user root;'
echo "daemon off; pid pid; $u error_log log; events {} http { access_log off; client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t; server { listen unix:$PWD/socket; root $PWD; } }" >conf
nginx -p $PWD -e log -c $PWD/conf & until curl -s --unix-socket socket http://x/index.html; do kill -0 $! 2>/dev/null || exit 1; done; kill $!; wait $!`,
		Want: "served\n", Less: MakeSock, Breaks: `bind\(\) to unix:.* failed \(13: Permission denied\)`},

	{Name: "chromium", About: "chromium headless, with --no-sandbox: a page and its script", As: User, Slow: true,
		Run: `echo '<p><script>document.write(6 * 7)</script>' >page.html
chromium-headless-shell --no-sandbox --dump-dom file://$PWD/page.html >dom 2>log || { cat log >&2; exit 1; }; grep -o '42$' dom`,
		Want: "42\n", Less: Socketpair, Breaks: `Trace/breakpoint trap`},
	{Name: "chromium-sandbox", About: "chromium with its own sandbox, which is namespaces", As: User, Slow: true,
		Run: `echo '<p><script>document.write(6 * 7)</script>' >page.html
chromium-headless-shell --dump-dom file://$PWD/page.html >dom 2>log || { cat log >&2; exit 1; }; grep -o '42$' dom`,
		Want: "42\n", Denied: `No usable sandbox!`},

	{Name: "git", About: "git: init, commit, mv, clone, push, gc, fsck",
		Run: `git init -q -b main a; cd a; git config user.name x; git config user.email x@x
mkdir d; echo one >f; git add f; git commit -qm one; git mv f d/f; git commit -qm moved
cd ..; git clone -q a b; git init -q --bare -b main c; cd b; git push -q ../c main; git gc -q; git fsck --no-progress
git --git-dir ../c log --format=%s; git count-objects -v | grep -E '^(count|packs)'`,
		Want: "moved\none\ncount: 0\npacks: 1\n", Less: Refer, Breaks: `renaming 'f' failed: Invalid cross-device link`},
	{Name: "make", About: "gcc, make, and make again",
		Run:  `cp $programs/make/* .; make -s; ./hello; sed -i s/world/again/ word.c; touch -d '1 minute' word.c; make -s 2>/dev/null; ./hello`,
		Want: "hello world\nhello again\n", Less: ExecuteMade, Breaks: `\./hello: Permission denied`},
	{Name: "make-install", About: "make install into /usr", As: Root, // only user 0 may write there
		Run:  `cp $programs/make/* .; make -s install; cd /; hello`,
		Want: "hello world\n", Less: WriteRoot, Breaks: `'/usr/local/bin/hello': Permission denied`},
	{Name: "dpkg", About: "dpkg -i, dpkg -r; apt-get install of a file (with -o APT::Sandbox::User=root, the one user there is)", As: Root,
		Run: `mkdir -p p/DEBIAN p/usr/share/demo; printf 'Package: demo\nVersion: 1\nArchitecture: all\nMaintainer: x\nDescription: x\n' >p/DEBIAN/control
echo installed >p/usr/share/demo/text; dpkg-deb -b p d.deb >log; dpkg -i d.deb >>log; cat /usr/share/demo/text; dpkg -r demo >>log; test -e /usr/share/demo || echo gone
apt-get -qq -o APT::Sandbox::User=root install ./d.deb >log 2>&1 || { cat log; exit 1; }; cat /usr/share/demo/text`,
		Want: "installed\ngone\ninstalled\n", Less: WriteRoot, Breaks: `do not have permission to lock the dpkg database`},
	{Name: "fakeroot", About: "fakeroot",
		Run:  `FAKEROOTDONTTRYCHOWN=1 fakeroot sh -c 'id -u; touch f; chown 3:4 f; stat -c %u:%g f'`,
		Want: "0\n3:4\n", Less: SysV, Breaks: `while creating message channels: Operation not permitted`},

	{Name: "multiprocessing", About: "python multiprocessing: fork, spawn, forkserver, executor, shared_memory, Lock",
		Run:  `python3 $programs/python/processes.py`,
		Want: "fork [0, 1, 4, 9, 16]\nspawn [0, 1, 4, 9, 16]\nforkserver [0, 1, 4, 9, 16]\nexecutor [0, 1, 4, 9, 16]\nshared memory 3\n",
		Less: DevShm, Breaks: `(?s)SemLock\(.*Error: \[Errno (13|30)\]`},
	{Name: "manager", About: "python multiprocessing.Manager",
		Run:  `python3 $programs/python/manager.py`,
		Want: "[(0, 0), (1, 1), (2, 4)]\n", Less: MakeSock, Breaks: `(?s)_socket\.bind.*PermissionError: \[Errno 13\]`},
	{Name: "asyncio", About: "python asyncio: subprocesses, Unix sockets, signals",
		Run:  `python3 $programs/python/subprocesses.py`,
		Want: "PIPE 0\n[0, 1, 2, 3]\nSOCKET\nsignal\n", Less: Socketpair, Breaks: `(?s)socketpair\(\).*Errno 97`},
	{Name: "uvloop", About: "the same on uvloop",
		Run:  `python3 $programs/python/subprocesses.py uvloop`,
		Want: "PIPE 0\n[0, 1, 2, 3]\nSOCKET\nsignal\n", Less: UnixSocket, Breaks: `(?s)create_unix_server.*Errno 97`},
	{Name: "pytest", About: "pytest with a failing test",
		Run:  `cp $programs/python/test_sum.py .; python3 -m pytest -q -p no:cacheprovider | sed 's/ in .*s$//' | tail -2`,
		Want: "FAILED test_sum.py::test_fails - assert (1 + 1) == 3\n1 failed, 2 passed\n", Status: 1,
		Less: MakeDir, Breaks: `ERROR test_sum.py::test_passes.* PermissionError`},
	{Name: "numpy", About: "numpy, also on an array that is a mapped file",
		Run: `python3 -c 'import numpy as np; a = np.memmap("a", dtype=float, mode="w+", shape=(100, 100)); a[:] = np.arange(10000.).reshape(100, 100)
print(int((a @ a.T).trace()), np.linalg.matrix_rank(a))'`,
		Want: "333283335000 2\n", Less: MakeReg, Breaks: `PermissionError: \[Errno 13\] Permission denied: 'a'`},
	{Name: "node", About: "node: worker_threads, child_process, fs.watch, os.networkInterfaces()",
		Run:  `node $programs/node/parts.js`,
		Want: "interfaces object\nexec child\nworker 42\nfork forked\nwatch file\n", Less: Netlink, Breaks: `uv_interface_addresses returned`},
	{Name: "perl", About: "perl: fork, socketpair",
		Run: `perl -e 'use Socket; socketpair(A, B, AF_UNIX, SOCK_STREAM, 0) or die "socketpair: $!";
if (fork) { close B; print <A>; wait; print $? >> 8, "\n" } else { close A; print B "from the child\n"; close B; exit 3 }'`,
		Want: "from the child\n3\n", Less: Socketpair, Breaks: `socketpair: Address family not supported`},
	{Name: "r", About: "R: a linear model, parallel by fork",
		Run: `Rscript -e 'library(parallel); cat(unlist(mclapply(1:4, function(n) n^2, mc.cores = 2)), "\n")
m <- lm(dist ~ speed, cars); cat(round(coef(m), 2), "\n")'`,
		Want: "1 4 9 16 \n-17.58 3.93 \n", Less: MakeDir, Breaks: `cannot create 'R_TempDir'`},
	{Name: "octave", About: "octave: linear algebra, a child process, a file",
		Run:  `octave-cli --norc --no-history --eval 'a = [2 1; 1 3]; [s, text] = system("echo child"); save("f", "a"); clear a; load f; printf("%.1f %s", det(a), text)'`,
		Want: "5.0 child\n", Less: Clone3, Breaks: `caught signal Aborted`, Slow: true},

	{Name: "tmux", About: "tmux: a session, keys, a wait",
		Run: `t() { tmux -S $PWD/socket -f /dev/null "$@"; }
t new-session -d -x 80 -y 24 "bash --norc"; t send-keys 'echo $((6*7)) >out; tmux wait-for -S done' Enter
t wait-for done; cat out; t list-panes -F '#{pane_width}x#{pane_height}'; t kill-server`,
		Want: "42\n80x24\n", Less: IoctlDev, Breaks: `create window failed: fork failed: Permission denied`},
	{Name: "screen", About: "screen", As: User, // user 0 of --fakeroot may not give a terminal to the group tty, and screen insists
		Run:  `export SCREENDIR=$PWD/.screen; mkdir -m 700 .screen; screen -DmS s bash -c 'tty >out'; sed 's/[0-9]*$/N/' out`,
		Want: "/dev/pts/N\n", Less: IoctlDev, Breaks: `can't read out`},
	{Name: "script", About: "script",
		Run:  `script -qec 'test -t 1 && echo terminal' log </dev/null | tr -d '\r'`,
		Want: "terminal\n", Less: IoctlDev, Breaks: `failed to create pseudo-terminal: Permission denied`},
	{Name: "expect", About: "expect",
		Run:  `expect -c 'log_user 0; set timeout 60; spawn bash --norc -c {read -p name: n; echo hello $n}; expect name:; send "me\r"; expect -re {hello (\w+)}; puts $expect_out(1,string)'`,
		Want: "me\n", Less: IoctlDev, Breaks: `The system has no more ptys`},
	{Name: "pty", About: "python pty, as in pexpect and notebooks",
		Run:  `python3 $programs/python/terminal.py`,
		Want: "/dev/pts/N 0\n", Less: IoctlDev, Breaks: `out of pty devices`},
	{Name: "jobs", About: "bash: job control, trap, timeout, nohup, setsid, pkill of own children",
		Run: `set -m; sleep 100 & kill %1; wait %1 || echo killed $?; set +m
(trap 'echo trapped; exit 3' TERM; kill -TERM $BASHPID; sleep 100) || echo exit $?
timeout 0.1 sleep 100 || echo timeout $?
nohup sh -c 'echo nohup' 2>/dev/null; setsid -w sh -c 'echo setsid'; sleep 100 & pkill -P $$; wait $! || echo pkill $?`,
		Want:   "killed 143\ntrapped\nexit 3\ntimeout 124\nnohup\nsetsid\npkill 143\n",
		Stderr: "[1]+  Terminated              sleep 100\n", Less: ProcessGroups, Breaks: `setpgid .*: Operation not permitted`},

	{Name: "gdb", About: "gdb",
		Run:    `gcc -g -o crash $programs/c/crash.c; gdb -nx -batch -ex run -ex bt ./crash 2>&1 | grep -E '^#|SIGSEGV|ptrace' | sed 's/0x0[0-9a-f]* in //; s/at .*crash.c/at crash.c/'`,
		Want:   "Program received signal SIGSEGV, Segmentation fault.\n#0  inner (p=0x0) at crash.c:2\n#1  outer (p=0x0) at crash.c:3\n#2  main () at crash.c:4\n",
		Denied: `ptrace: Operation not permitted`, Open: ptrace},
	{Name: "strace", About: "strace",
		Run:    `strace -f -e trace=chdir -o log sh -c 'cd /; cd /tmp'; sed 's/^[0-9]* *//' log`,
		Want:   "chdir(\"/\")                        = 0\nchdir(\"/tmp\")                     = 0\n+++ exited with 0 +++\n",
		Denied: `PTRACE_TRACEME, ...): Operation not permitted`, Open: ptrace},
	{Name: "ltrace", About: "ltrace",
		Run:  `gcc -o leak $programs/c/leak.c; ltrace -e malloc ./leak 2>&1 | sed 's/ *= 0x.*/ = N/'`,
		Want: "leak->malloc(100) = N\n+++ exited (status 0) +++\n", Denied: `PTRACE_TRACEME: Operation not permitted`, Open: ptrace},
	{Name: "lsan", About: "LeakSanitizer (part of AddressSanitizer: ASAN_OPTIONS=detect_leaks=0 turns it off)",
		Run:  `gcc -g -fsanitize=address -o leak $programs/c/leak.c; ./leak 2>&1 | grep -E 'SUMMARY|Leak' | sed 's/==[0-9]*==//'`,
		Want: "ERROR: LeakSanitizer: detected memory leaks\nSUMMARY: AddressSanitizer: 100 byte(s) leaked in 1 allocation(s).\n", Status: 1,
		Denied: `LeakSanitizer has encountered a fatal error`, Open: ptrace},
	{Name: "asan", About: "AddressSanitizer, UBSan",
		Run:  `gcc -g -fsanitize=address,undefined -o overflow $programs/c/overflow.c; ASAN_OPTIONS=detect_leaks=0 ./overflow 2>&1 | grep -oE 'heap-buffer-overflow on|.*denied'`,
		Want: "heap-buffer-overflow on\n", Status: 1, Less: ExecuteMade, Breaks: `\./overflow: Permission denied`},
	{Name: "tsan", About: "ThreadSanitizer (on new kernels under setarch -R)",
		Run:  `gcc -g -fsanitize=thread -o race $programs/c/race.c; setarch -R ./race 2>&1 | grep -oE 'WARNING: ThreadSanitizer: data race|.*personality.*'`,
		Want: "WARNING: ThreadSanitizer: data race\n", Status: 66, Less: Personality, Breaks: `failed to set personality to .*: Operation not permitted`},
	{Name: "valgrind", About: "valgrind",
		Run:  `gcc -g -o leak $programs/c/leak.c; valgrind --leak-check=full ./leak 2>&1 | sed 's/^==[0-9]*== *//' | grep -E 'definitely lost: |ERROR SUMMARY|been mmap-ed'`,
		Want: "definitely lost: 100 bytes in 1 blocks\nERROR SUMMARY: 1 errors from 1 contexts (suppressed: 0 from 0)\n", Less: ExecutableHeap, Breaks: `bytes have already been mmap-ed`},
	{Name: "qemu", About: "qemu-system, without KVM",
		Run:  `perl $programs/boot.pl >disk; qemu-system-x86_64 -nodefaults -display none -serial stdio -m 16 -device isa-debug-exit,iobase=0xf4 -drive file=disk,format=raw 2>&1 </dev/null`,
		Want: "booted\n", Status: 1, Less: ExecutableHeap, Breaks: `mprotect of jit buffer: Permission denied`},
	{Name: "qemu-user", About: "qemu-user", Run: `gcc -static -o leak $programs/c/leak.c; qemu-x86_64 ./leak; qemu-x86_64 /bin/echo emulated`,
		Want: "emulated\n", Less: ExecutableHeap, Breaks: `denied`},
	{Name: "openmp", About: "OpenMP with threads bound to processors",
		Run:  `gcc -fopenmp -o openmp $programs/c/openmp.c; OMP_PROC_BIND=true OMP_PLACES=cores ./openmp`,
		Want: "threads 2, sum 3, bound 2\n", Less: Affinity, Breaks: `libgomp: Thread creation failed: Operation not permitted`},
	{Name: "numactl", About: "numactl",
		Run:  `numactl --membind=0 --physcpubind=0 echo bound; numactl --interleave=all echo interleaved`,
		Want: "bound\ninterleaved\n", Less: MemoryPolicy, Breaks: `set_mempolicy: Operation not permitted`},
	{Name: "taskset", About: "taskset, also of a running process",
		Run:  `taskset -c 0 nproc; taskset -pc 0 $$ | sed -n 's/.*new affinity/new affinity/p'`,
		Want: "1\nnew affinity list: 0\n", Less: Affinity, Breaks: `failed to set pid [0-9]*'s affinity: Operation not permitted`},
	{Name: "nice", About: "nice, ionice",
		Run:  `nice -n 5 nice; ionice -c 3 ionice`,
		Want: "5\nidle\n", Less: Priority, Breaks: `cannot set niceness: Operation not permitted`},
	{Name: "chrt", About: "chrt",
		Run:  `chrt -b 0 chrt -p 0 | sed -n '1s/.*current/current/p'`,
		Want: "current scheduling policy: SCHED_BATCH\n", Less: Scheduler, Breaks: `failed to set pid 0's policy: Operation not permitted`},
	{Name: "ulimit", About: "ulimit, prlimit",
		Run:  `ulimit -n 100; ulimit -n; prlimit --nofile=50 bash -c 'ulimit -n'`,
		Want: "100\n50\n", Less: Limits, Breaks: `ulimit: open files: cannot get limit: Operation not permitted`},
	{Name: "renice", About: "renice, chrt -p, prlimit --pid: of a process by its number",
		Run:  `bad=0; for c in 'renice -n 1 -p' 'chrt -b -p 0' 'prlimit --nofile=50:50 --pid'; do $c $$ >/dev/null && echo "${c%% *} done" || bad=1; done; exit $bad`,
		Want: "renice done\nchrt done\nprlimit done\n", Denied: `Operation not permitted`,
		Open: []string{"--syscall", "setpriority", "--syscall", "sched_setattr", "--syscall", "sched_setscheduler", "--syscall", "prlimit64"}},

	{Name: "free", About: "free, ps, top, htop, nproc",
		Run: `free | awk 'NR == 2 && $2 > 0 {print "memory"}'; ps -o comm= -p $$; top -bn1 | grep -c '^top'; nproc | grep -cv '^0$'
expect -c 'log_user 0; set timeout 60; spawn htop; expect Mem {puts htop}; send q; expect eof'`,
		Want: "memory\nbash\n1\n1\nhtop\n", Less: Meminfo, Breaks: `Unable to create meminfo structure`},
	{Name: "lscpu", About: "lscpu", Run: `lscpu | grep -c '^CPU(s)'`, Want: "1\n", Less: Sys, Breaks: `/sys/devices/system/cpu/possible: No such file or directory`},
	{Name: "find", About: "ls /, find /",
		Run:  `ls / >/dev/null; find / -xdev -maxdepth 3 -type d ! -readable -prune -o -print | grep '^/usr/bin$'`,
		Want: "/usr/bin\n", Less: ReadDir, Breaks: `ls: cannot open directory '/': Permission denied`},
	{Name: "locale", About: "locale, getent, id",
		Run:  `locale charmap; getent passwd root | cut -d: -f1,3; getent group root | cut -d: -f1,3; getent passwd $(id -u) | cut -d: -f3 | grep -cx $(id -u)`,
		Want: "UTF-8\nroot:0\nroot:0\n1\n", Less: Lang, Breaks: `ANSI_X3.4-1968`},

	{Name: "rename", About: "mv, rename(2) and ln between folders",
		Run:  `mkdir a b; echo x >a/f; mv a/f b/f; python3 -c 'import os; os.rename("b/f", "a/g"); os.link("a/g", "b/h")'; cat b/h`,
		Want: "x\n", Less: Refer, Breaks: `OSError: .*Invalid cross-device link: 'b/f' -> 'a/g'`},
	{Name: "tar", About: "tar, gzip, hard and symbolic links",
		Run:  `mkdir -p a/b c; echo x >a/b/f; ln a/b/f a/hard; ln -s b/f a/soft; tar --sort=name -czf a.tgz a; tar -xf a.tgz -C c; tar -tf a.tgz | sort; cat c/a/soft; stat -c %h c/a/hard`,
		Want: "a/\na/b/\na/b/f\na/hard\na/soft\nx\n2\n", Less: Refer, Breaks: `failed to create hard link 'a/hard' => 'a/b/f': Invalid cross-device link`},
	{Name: "rsync", About: "rsync -a --delete",
		Run:  `mkdir -p a/old b/gone; echo x >a/old/f; rsync -a --delete a/ b/; find b | sort`,
		Want: "b\nb/old\nb/old/f\n", Less: RemoveDir, Breaks: `rmdir\(gone\) failed: Permission denied`},
	{Name: "cp", About: "cp -a, --reflink, --sparse; truncate; dd",
		Run:  `echo x >a; cp --reflink=auto a b; cp -a b c; truncate -s 1M big; cp --sparse=always big big2; stat -c '%s %b' big2; dd if=/dev/zero of=a bs=10 count=1 2>/dev/null; stat -c %s a`,
		Want: "1048576 0\n10\n", Less: Truncate, Breaks: `failed to truncate 'big' at 1048576 bytes: Permission denied`},
	{Name: "mkfifo", About: "mkfifo, process substitution",
		Run:  `mkfifo f; echo through >f & cat f; wait; diff <(echo a) <(echo a) && echo same`,
		Want: "through\nsame\n", Less: MakeFifo, Breaks: `cannot create fifo 'f': Permission denied`},
	{Name: "symlink", About: "ln -s", Run: `ln -s target link; readlink link`, Want: "target\n", Less: MakeSym, Breaks: `failed to create symbolic link 'link': Permission denied`},
	{Name: "flock", About: "flock",
		Run:  `flock lock echo locked; exec 3>lock; flock 3; flock -n lock true || echo busy`,
		Want: "locked\nbusy\n", Less: Flock, Breaks: `flock: lock: Operation not permitted`},
	{Name: "output", About: "graders that compare output: stdout, stderr and status byte by byte, nothing of fence's, and a score in a file",
		Run:  `echo out; echo err >&2; printf '\0\377'; echo 1 >/tmp/score; cat /tmp/score; exit 7`,
		Want: "out\n\x00\xff1\n", Stderr: "err\n", Status: 7, Less: WriteFile, Breaks: `/tmp/score: Permission denied`},

	{Name: "mqueue", About: "POSIX message queues",
		Run: `gcc -o queue $programs/c/queue.c; ./queue`, Want: "through\n", Less: SysV, Breaks: `mq_open: Operation not permitted`, DeniedBare: `mq_open: Permission denied`},

	{Name: "localhost", About: "a web server on localhost (python's http.server)",
		Run: `python3 $programs/python/server.py`, Want: "served\n", Denied: noNetwork, Open: loopback},
	{Name: "servers", About: "flask, nginx and redis on localhost, with curl",
		Run: `port=$((20000 + SRANDOM % 10000)); cp $programs/python/app.py .; echo from nginx >index.html; u=; test $(id -u) != 0 || u='user root;'
echo "daemon off; pid pid; $u error_log log; events {} http { access_log off; client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t; uwsgi_temp_path t; scgi_temp_path t; server { listen 127.0.0.1:$port; root $PWD; } }" >conf
get() { until "$@" 2>/dev/null; do kill -0 $! 2>/dev/null || { cat log; exit 1; }; done; kill $!; wait $! || true; }
python3 -m flask run --port $port >log 2>&1 & get curl -sf http://localhost:$port
nginx -p $PWD -e log -c $PWD/conf & get curl -sf http://localhost:$port
redis-server --bind 127.0.0.1 --port $port --save '' >log 2>&1 & get redis-cli -p $port echo 'from redis'`,
		Want: "from flask\nfrom nginx\nfrom redis\n", Denied: `Address family not supported by protocol`, Open: loopback},
	{Name: "sshd", About: "sshd on localhost", As: User, Slow: true, // for user 0 it wants a user sshd to change to
		Run: `ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -q -t ed25519 -N '' -f host; port=$((20000 + SRANDOM % 10000))
echo "[127.0.0.1]:$port $(<host.pub)" >known
/usr/sbin/sshd -D -e -f /dev/null -p $port -o ListenAddress=127.0.0.1 -o HostKey=$PWD/host -o AuthorizedKeysFile=$PWD/key.pub -o StrictModes=no -o UsePAM=no -o PidFile=none 2>log &
s() { ssh -F none -i key -o UserKnownHostsFile=$PWD/known -o BatchMode=yes -p $port 127.0.0.1 "$@" </dev/null; }
until s true 2>/dev/null; do kill -0 $! 2>/dev/null || { cat log; exit 1; }; done; s 'echo over ssh; exit 3' 2>log || echo status $?; kill $!; wait $! || true`,
		Want: "over ssh\nstatus 3\n", Denied: `Cannot bind any address`, Open: loopback},
	{Name: "zmq", About: "ZeroMQ on a Unix socket: it gives each of its threads the priority that it has",
		Run: `python3 $programs/python/zero.py`, Want: "through\n", Denied: `Operation not permitted (src/thread.cpp`, Open: []string{"--syscall", "sched_setscheduler"}},
	{Name: "jupyter", About: "jupyter: nbconvert --execute, a notebook server", As: User, Slow: true,
		Run: `cp $programs/python/a.ipynb .; python3 -m nbconvert --execute --to markdown --stdout a.ipynb 2>log | sed -n 's/^ *42$/42/p' || { cat log >&2; exit 1; }
port=$((20000 + SRANDOM % 10000)); jupyter notebook --no-browser --NotebookApp.token= --port $port >log 2>&1 &
until curl -sf http://localhost:$port/api/contents | grep -o 'a.ipynb' | head -1; do kill -0 $! 2>/dev/null || { cat log; exit 1; }; done; kill $!; wait $! || true`,
		Want: "42\na.ipynb\n", Denied: noNetwork, Open: []string{"--net", "loopback", "--syscall", "sched_setscheduler"}},
	{Name: "dask", About: "dask: a LocalCluster on localhost", As: User, Slow: true,
		Run:  `python3 $programs/python/cluster.py 2>log || { tail -1 log >&2; exit 1; }`,
		Want: "[0, 1, 4, 9]\n", Denied: `Cluster failed to start`, Open: loopback},
	{Name: "psock", About: "R's PSOCK cluster", As: User, Slow: true,
		Run:  `Rscript -e 'library(parallel); c <- makePSOCKcluster(2); cat(unlist(parLapply(c, 1:4, function(n) n^2)), "\n"); stopCluster(c)'`,
		Want: "1 4 9 16 \n", Denied: `creation of server socket failed`, Open: loopback},
	{Name: "slirp", About: "qemu-system with a network of its own (slirp) and a port of it on localhost",
		Run:  `perl $programs/boot.pl >disk; qemu-system-x86_64 -nodefaults -display none -serial stdio -m 16 -device isa-debug-exit,iobase=0xf4 -drive file=disk,format=raw -nic user,hostfwd=tcp:127.0.0.1:$((20000 + SRANDOM % 10000))-:80 2>&1 </dev/null`,
		Want: "booted\n", Status: 1, Denied: `Could not set up host forwarding rule`, Open: loopback},
	{Name: "mpi", About: "Open MPI on one node", Slow: true, As: User,
		Run:  `export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mtl=^psm,psm2,ofi; mpirun -n 2 --oversubscribe python3 $programs/python/mpi.py | sort`,
		Want: "0 3 1000000\n1 3 1000000\n", Denied: `socket() failed with errno=97`, Open: loopback},
	{Name: "root-modes", About: "root that changes files whatever their mode (rm -rf of a read-only folder, such as Go's modules)", As: Root,
		Run: `mkdir d; touch d/f; chmod 555 d; rm -rf d; echo removed`, Want: "removed\n", Denied: `cannot remove 'd/f': Permission denied`,
		Open: []string{"--policy", Dir + "/programs/root.toml"}},
	{Name: "root-mounts", About: "root that mounts, or changes its root folder", As: Root,
		Run: `mkdir d; mount -t tmpfs x d; umount d; chroot / echo in`, Want: "in\n", Denied: `permission denied`},
	{Name: "bwrap", About: "bwrap, and so flatpak: a container in the container",
		Run: `bwrap --ro-bind / / echo inside`, Want: "inside\n", Denied: `new namespace`},
	// As the user it wants subordinate ids. Without XDG_RUNTIME_DIR it makes /run/user, which the
	// bare form could not hide from the workloads that start after it.
	{Name: "podman", About: "podman: build an image", As: Root,
		Run: `export XDG_RUNTIME_DIR=$PWD; printf 'FROM scratch\nCOPY text /\nENV made=inside\n' >Dockerfile; echo x >text; p() { podman --log-level error --storage-driver vfs "$@"; }
id=$(p build -q .); p inspect -f '{{.Os}} {{.Config.Env}}' $id | grep -o 'made=inside'`,
		Want: "made=inside\n", Denied: `cannot clone: Operation not permitted`},
	{Name: "unshare", About: "unshare", Run: `unshare -U id -u`, Want: "65534\n", Denied: `unshare failed: Operation not permitted`},
	{Name: "perf", About: "perf", Run: `perf stat -x, -e task-clock true 2>&1 | cut -d, -f3 | sed s/:u//`, Want: "task-clock\n",
		Denied: `Access to performance monitoring and observability operations is limited`, Open: []string{"--syscall", "perf_event_open"}},
	{Name: "date", About: "date -s, hostname NAME: refused without the fence too",
		Run: `hostname x || date -s 2000-01-01`, Want: "Sat Jan  1 00:00:00 UTC 2000\n", Status: 1,
		Stderr: "hostname: you must be root to change the host name\ndate: cannot set date: Operation not permitted\n", Idle: "it fails without the fence too"},
}

// noNetwork is what Python says where there is none.
const noNetwork = `[Errno 97] Address family not supported by protocol`

var (
	loopback = []string{"--net", "loopback"}
	ptrace   = []string{"--syscall", "ptrace"}
)
