/* floor CMD...: becomes CMD behind a filter of one instruction and a Landlock
 * layer of one rule, both of which allow everything: what any launcher that
 * uses them costs the command at the least. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	(void)argc;
	const __u64 rights = (1 << 13) - 1; /* those of ABI 1 */
	struct landlock_ruleset_attr attr = {.handled_access_fs = rights};
	int fd = syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
	struct landlock_path_beneath_attr all = {.allowed_access = rights, .parent_fd = open("/", O_PATH | O_CLOEXEC)};
	struct sock_filter allow[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
	struct sock_fprog filter = {1, allow};
	if (fd < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_landlock_add_rule, fd, LANDLOCK_RULE_PATH_BENEATH, &all, 0) ||
	    syscall(SYS_landlock_restrict_self, fd, 0) || syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)) {
		perror("floor");
		return 125;
	}
	close(fd);
	execv(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
