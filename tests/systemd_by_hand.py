"""Started by tests/systemd_by_hand, which says what it does."""

import grp, os, pathlib, shutil, subprocess, sys, urllib.error, urllib.request
from compose_by_hand import EVENTS, PROGRAMS, ROOT, Stack, play, until

UNITS = ROOT / "packaging/systemd"
RELAY, INBOX = "tailpost-relay.service", "tailpost-inbox@billing.service"
# What the units name, and nothing else: no service of this machine is started.
TARGETS = ["sysinit", "basic", "multi-user", "shutdown", "umount", "network-online"]
# The first process of the namespaces. Of this machine's files it changes none: what it writes goes over them.
FIRST = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
for over in /etc /usr/bin; do
  mkdir -p /run/over$over/upper /run/over$over/work
  mount -t overlay -o "lowerdir=$over,upperdir=/run/over$over/upper,workdir=/run/over$over/work" overlay "$over"
done
mount -t tmpfs -o mode=755 tmpfs /usr/lib/systemd/system
mount -t tmpfs -o mode=755 tmpfs /etc/systemd
cp -a "$1/install/etc/tailpost" /etc/
cp -a "$1/install/etc/systemd/system" /etc/systemd/
cp "$1/install/usr/bin/tailpost" /usr/bin/
# As in any container: the copies of secrets are mounted by a child, and seen by the others.
mount --make-rshared /
exec /lib/systemd/systemd --system --unit=multi-user.target --log-target=null
"""


class Machine:
    """A systemd with our units, in namespaces."""

    def __init__(self, folder):
        self.folder = folder
        mounted = [line.split() for line in open("/proc/mounts")]
        unified = next((it[1] for it in mounted if it[2] == "cgroup2"), None) or sys.exit("no cgroup2 is mounted here")
        self.cgroup = pathlib.Path(unified) / f"tailpost-{os.getpid()}"
        self.cgroup.mkdir()
        self.outer = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--ipc", "--uts", "bash", "-c", FIRST, "bash", folder],
            env={"PATH": os.environ["PATH"], "container": "tailpost"}, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: (self.cgroup / "cgroup.procs").write_text(str(os.getpid())))
        until("systemd runs", lambda: self.systemctl("is-system-running", "--wait") in ("running", "degraded"))

    def systemctl(self, *arguments):
        children = pathlib.Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text().split()
        if not children:
            return None
        done = subprocess.run(["nsenter", "--all", "--target", children[0], "systemctl", *arguments], capture_output=True, text=True)
        return (done.stdout or done.stderr).strip()

    def property(self, unit, name):
        return self.systemctl("show", "--property", name, "--value", unit)

    def end(self):
        self.outer.kill()
        self.outer.wait()
        until("its processes are gone", lambda: "populated 0" in (self.cgroup / "cgroup.events").read_text())
        for folder in sorted(self.cgroup.rglob("*/"), reverse=True):
            folder.rmdir()
        self.cgroup.rmdir()


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def install(stack):
    """What docs/upgrading.md#packages says, below a folder that is copied over the root."""
    root = stack.folder / "install"
    (root / "usr/bin").mkdir(parents=True)
    shutil.copy(PROGRAMS["tailpost"], root / "usr/bin/tailpost")
    ports = stack.ports
    write(root / "etc/tailpost/tailpost.toml", f"""
[postgres]
url = "postgres://postgres@127.0.0.1:{ports['postgres', 5432]}/postgres"
[nats]
url = "nats://127.0.0.1:{ports['nats', 4222]}"
[admin]
listen = "127.0.0.1:{ports['relay', 9464]}"
inbox_listen = "127.0.0.1:{ports['inbox', 9465]}"
[inbox.billing]
handler = "http://127.0.0.1:{ports['handler', 8080]}/events"
""")
    write(root / "etc/tailpost/secrets/postgres-password", stack.variables["POSTGRES_PASSWORD"], 0o600)
    write(root / "etc/tailpost/secrets/admin-token", stack.variables["ADMIN_TOKEN"], 0o600)
    system = root / "etc/systemd/system"
    for target in TARGETS:
        write(system / f"{target}.target", "[Unit]\nDefaultDependencies=no\n")
    for unit in UNITS.glob("*.service"):
        write(system / unit.name, unit.read_text())
    lines = (UNITS / "credentials.conf").read_text().splitlines()
    # This NATS knows no users.
    given = "\n".join(it for it in lines if "nats.creds" not in it) + "\n"
    # A call that the filter does not allow ends the process here, instead of failing.
    strict = f"[Service]\nSystemCallErrorNumber=\nWatchdogSec=3\nStandardError=append:{stack.folder}/%p.log\n"
    write(system / f"{RELAY}.d/credentials.conf", given)
    write(system / f"{RELAY}.d/strict.conf", strict)
    # The inbox asks a program for its password, which reads what the inbox's group may.
    write(root / "etc/tailpost/shared/postgres-password", stack.variables["POSTGRES_PASSWORD"], 0o640)
    os.chown(root / "etc/tailpost/shared/postgres-password", 0, grp.getgrnam("adm").gr_gid)
    write(system / "tailpost-inbox@.service.d/strict.conf", strict.replace("WatchdogSec=3\n", "") + """
SupplementaryGroups=adm
Environment='TAILPOST_POSTGRES__PASSWORD_COMMAND=["/bin/cat","/etc/tailpost/shared/postgres-password"]'
""")


def metrics(stack, token):
    """What the relay answers to whom asks with this token."""
    url = f"http://127.0.0.1:{stack.ports['relay', 9464]}/metrics"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code


def run(stack):
    stack.postgres()
    stack.nats()
    for service in ("setup", "inbox-setup"):
        stack.tailpost(service)
        assert stack.processes.pop(service).wait(60) == 0, f"{service} failed"
    stack.start("handler", ["python3", *stack.command("handler")[1:]])
    install(stack)
    machine = Machine(stack.folder)
    try:
        work(stack, machine)
    except BaseException:
        print(machine.systemctl("status", "--no-pager", "--full", RELAY, INBOX), file=sys.stderr)
        raise
    finally:
        machine.end()


def work(stack, machine):
    machine.systemctl("start", "--no-block", RELAY, INBOX)
    for unit in (RELAY, INBOX):
        until(f"{unit} is ready", lambda: machine.property(unit, "ActiveState") == "active")
        assert machine.property(unit, "NRestarts") == "0", f"{unit} was started again"
    print(f"         {RELAY}: {machine.property(RELAY, 'StatusText')}")
    asked = [metrics(stack, token) for token in (stack.variables["ADMIN_TOKEN"], "another")]
    assert asked == [200, 401], f"asked with the token in the credential, and with another: {asked}"
    stack.emit(1, EVENTS // 2)
    until("the first events have their effect", lambda: stack.effects()[0] == EVENTS // 2)
    # A relay that hangs says nothing more.
    machine.systemctl("kill", "--signal=STOP", RELAY)
    stack.emit(EVENTS // 2 + 1, EVENTS)
    until("the watchdog has had it started again", lambda: machine.property(RELAY, "NRestarts") == "1")
    until("it is ready", lambda: machine.property(RELAY, "ActiveState") == "active")
    until("every event has its effect", lambda: stack.effects()[0] == EVENTS)
    assert stack.effects() == (EVENTS, EVENTS, EVENTS * (EVENTS + 1) // 2), stack.effects()
    until("no row is unpublished", lambda: stack.sql("SELECT count(*) FROM outbox_status WHERE status <> 'PUBLISHED'") == "0")
    for unit in (RELAY, INBOX):
        machine.systemctl("stop", unit)
        found = [machine.property(unit, name) for name in ("ActiveState", "Result", "ExecMainStatus")]
        assert found == ["inactive", "success", "0"], f"{unit}: {found}"
    print(f"{EVENTS} events committed, {EVENTS} effects, under {machine.systemctl('--version').splitlines()[0]}")


if __name__ == "__main__":
    if os.getuid() != 0:
        sys.exit("systemd_by_hand: systemd and namespaces need root")
    play("systemd_by_hand", run)
