"""Started by tests/compose_by_hand, which says what it does."""

import json, os, pathlib, re, secrets, shutil, signal, socket, sqlite3, subprocess, sys, tempfile, time, urllib.request
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCKER = ROOT / "docker"
EVENTS = 300
PROGRAMS = {name.lower(): os.environ[name] for name in ("POSTGRES", "NATS", "PROMETHEUS", "TAILPOST")}
# Grafana is in no registry that the tests reach: its files are looked at, and it is not started.
NOT_STARTED = {"grafana"}


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


class Stack:
    def __init__(self, folder):
        self.folder = folder
        self.variables = {name: secrets.token_hex(16) for name in ("ADMIN_TOKEN", "POSTGRES_PASSWORD", "GRAFANA_PASSWORD")}
        self.compose = yaml.safe_load(self.substituted((DOCKER / "compose.yaml").read_text()))
        self.services = self.compose["services"]
        self.processes = {}
        # A port of this machine for each port that a service listens on.
        self.ports = {}
        for service, port in [("postgres", 5432), ("nats", 4222), ("nats", 8222), ("relay", 9464), ("standby", 9464),
                              ("inbox", 9465), ("handler", 8080), ("prometheus", 9090)]:
            self.ports[service, port] = free_port()

    def substituted(self, text):
        def value(match):
            return self.variables[match[1]]
        return re.sub(r"\$\{(\w+):\?[^}]*\}", value, text)

    def here(self, service, text):
        """The text with names and ports of containers, and paths in them, replaced by those of this machine."""
        for (of, port), ours in self.ports.items():
            text = text.replace(f"{of}:{port}", f"127.0.0.1:{ours}")
            if of == service:
                text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{ours}")
        text = text.replace("@postgres/", f"@127.0.0.1:{self.ports['postgres', 5432]}/")
        mounts = {inside: str(outside) for outside, inside in self.mounts(service)}
        if mounts:
            # In one go: what is put in is not looked at again.
            text = re.sub(r"(?<![\w/.-])(?:" + "|".join(map(re.escape, mounts)) + ")", lambda it: mounts[it[0]], text)
        return text

    def mounts(self, service):
        """Longest first: /a/b is in /a."""
        found = []
        for volume in self.services[service].get("volumes", []):
            outside, inside = volume.split(":")[:2]
            if outside.startswith("."):
                path = (DOCKER / outside).resolve()
                if not path.exists():
                    sys.exit(f"{service} mounts {outside}, which does not exist")
            else:
                path = self.folder / outside
            found.append((path, inside))
        for inside in self.services[service].get("tmpfs", []):
            path = self.folder / f"{service}-tmpfs"
            path.mkdir(exist_ok=True)
            found.append((path, inside))
        return sorted(found, key=lambda it: -len(it[1]))

    def command(self, service):
        """Its command line, with its ports."""
        ports = {str(port): str(ours) for (of, port), ours in self.ports.items() if of == service}
        return [self.here(service, ports.get(str(it), str(it))) for it in self.services[service]["command"]]

    def start(self, service, command, user=None):
        environment = {"PATH": os.environ["PATH"]}
        for name, value in (self.services[service].get("environment") or {}).items():
            environment[name] = self.here(service, str(value))
        # The relay's working directory has no tailpost.toml, as in the image.
        log = open(self.folder / f"{service}.log", "ab")
        self.processes[service] = subprocess.Popen(
            command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user, group=user)

    def postgres(self):
        # PostgreSQL does not run as root; elsewhere it runs as whoever runs this.
        user = 65534 if os.getuid() == 0 else None
        data = self.folder / "postgres"
        data.mkdir()
        if user:
            os.chown(data, user, user)
        password = self.folder / "password"
        password.write_text(self.services["postgres"]["environment"]["POSTGRES_PASSWORD"])
        password.chmod(0o644)
        folder = PROGRAMS["postgres"]
        subprocess.run([f"{folder}/initdb", "--pgdata", data, "--username", "postgres", "--pwfile", password, "--auth",
                        "scram-sha-256"], check=True, user=user, group=user, cwd="/", stdout=subprocess.DEVNULL)
        command = self.command("postgres")
        assert command[0] == "postgres", command
        command = [f"{folder}/postgres", *command[1:], "-D", str(data), "-p", str(self.ports["postgres", 5432]), "-k", str(data)]
        self.start("postgres", command, user)
        until("PostgreSQL", lambda: self.sql("SELECT 1") == "1")

    def nats(self):
        port, monitor = self.ports["nats", 4222], self.ports["nats", 8222]
        self.start("nats", [PROGRAMS["nats"], *self.command("nats"), "--addr", "127.0.0.1", "--port", str(port)])
        # What the health check of the service asks.
        until("NATS", lambda: get(f"http://127.0.0.1:{monitor}/healthz"))

    def tailpost(self, service):
        self.start(service, [PROGRAMS["tailpost"], *self.command(service)])

    def prometheus(self):
        (self.folder / "prometheus").mkdir()
        token = self.folder / "admin_token"
        token.write_text(self.variables["ADMIN_TOKEN"])
        assert self.services["prometheus"]["secrets"] == ["admin_token"]
        text = self.here("prometheus", (DOCKER / "prometheus.yml").read_text())
        text = text.replace("/run/secrets/admin_token", str(token)).replace("interval: 15s", "interval: 1s")
        configuration = self.folder / "prometheus.yml"
        configuration.write_text(text)
        shutil.copy(DOCKER / "alerts.yml", self.folder)
        command = [it.replace(str(DOCKER / "prometheus.yml"), str(configuration)) for it in self.command("prometheus")]
        listen = f"--web.listen-address=127.0.0.1:{self.ports['prometheus', 9090]}"
        self.start("prometheus", [PROGRAMS["prometheus"] + "/prometheus", *command, listen])

    def sql(self, statement):
        url = f"postgres://postgres:{self.variables['POSTGRES_PASSWORD']}@127.0.0.1:{self.ports['postgres', 5432]}/postgres"
        done = subprocess.run([PROGRAMS["postgres"] + "/psql", url, "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", statement],
                              capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    def emit(self, first, last):
        emitted = self.sql(f"SELECT count(outbox_emit('order', 'o-' || n % 7, 'OrderPaid', jsonb_build_object('total_cents', n)))"
                           f" FROM generate_series({first}, {last}) n")
        assert emitted == str(last - first + 1), emitted

    def readiness(self, service):
        port = 9465 if service == "inbox" else 9464
        found = get(f"http://127.0.0.1:{self.ports[service, port]}/readyz")
        return json.loads(found) if found else {}

    def role(self, service):
        return self.readiness(service).get("role")

    def up(self):
        found = get(f"http://127.0.0.1:{self.ports['prometheus', 9090]}/api/v1/query?query=up")
        if not found:
            return {}
        ours = {f"127.0.0.1:{port}": of for (of, _), port in self.ports.items()}
        return {ours[it["metric"]["instance"]]: it["value"][1] for it in json.loads(found)["data"]["result"]}

    def effects(self):
        """How many, and how many different ones."""
        path = self.folder / "handler-tmpfs/totals.sqlite"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            return database.execute("SELECT count(*), count(DISTINCT event_id), sum(cents) FROM totals").fetchone()

    def stop(self, service):
        process = self.processes.pop(service)
        process.send_signal(signal.SIGINT if service == "postgres" else signal.SIGTERM)
        return process.wait(30)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


def until(what, holds, seconds=30):
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > seconds:
            raise SystemExit(f"compose_by_hand: not within {seconds} s: {what}")
        time.sleep(0.1)
    print(f"  {time.monotonic() - started:5.1f} s  {what}", flush=True)


def networks(services):
    """Which services share a network, and so reach each other."""
    shared = {}
    for name, service in services.items():
        assert "network_mode" not in service, f"{name} shares the interfaces of another service"
        for network in service.get("networks", ["default"]):
            shared.setdefault(network, set()).add(name)
    return shared


def run(stack):
    shared = networks(stack.services)
    assert shared["handler"] == {"handler", "inbox"} and "handler" not in shared["default"], "only the inbox is to reach the handler"
    started = {"postgres", "nats", "setup", "inbox-setup", "relay", "standby", "inbox", "handler", "prometheus"}
    assert set(stack.services) == started | NOT_STARTED, "a service of compose.yaml is not started here: add it"
    stack.mounts("grafana")
    stack.postgres()
    stack.nats()
    for service in ("setup", "inbox-setup"):
        stack.tailpost(service)
        assert stack.processes.pop(service).wait(60) == 0, f"{service} failed"
    stack.tailpost("relay")
    until("the relay publishes", lambda: stack.role("relay") == "active")
    stack.tailpost("standby")
    until("the standby stands by, and is ready", lambda: stack.readiness("standby") == {**stack.readiness("standby"), "ready": True, "role": "standby"})
    stack.start("handler", ["python3", *stack.command("handler")[1:]])
    stack.tailpost("inbox")
    until("the inbox is ready", lambda: stack.readiness("inbox").get("ready"))
    stack.prometheus()
    until("Prometheus reaches all three", lambda: stack.up() == {"relay": "1", "standby": "1", "inbox": "1"})
    stack.emit(1, EVENTS // 3)
    until("the first events have their effect", lambda: stack.effects()[0] > 0)
    killed = stack.processes.pop("relay")
    stack.emit(EVENTS // 3 + 1, 2 * EVENTS // 3)
    killed.kill()
    killed.wait()
    stack.emit(2 * EVENTS // 3 + 1, EVENTS)
    until("the standby has taken over", lambda: stack.role("standby") == "active")
    until("Prometheus sees that the relay is gone", lambda: stack.up().get("relay") == "0")
    stack.tailpost("relay")
    until("the relay stands by", lambda: stack.role("relay") == "standby")
    until("every event has its effect", lambda: stack.effects()[0] == EVENTS)
    assert stack.effects() == (EVENTS, EVENTS, EVENTS * (EVENTS + 1) // 2), stack.effects()
    until("no row is unpublished", lambda: stack.sql("SELECT count(*) FROM outbox_status WHERE status <> 'PUBLISHED'") == "0")
    until("every event is recorded as processed",
          lambda: stack.sql("SELECT count(*) FROM inbox_messages WHERE status = 'PROCESSED'") == str(EVENTS))
    environment = {name: stack.here("relay", str(value)) for name, value in stack.services["relay"]["environment"].items()}
    verified = subprocess.run([PROGRAMS["tailpost"], "verify"], env=environment, cwd=stack.folder, capture_output=True, text=True)
    print(verified.stdout.strip())
    assert verified.returncode == 0, verified.stderr
    for service in ("inbox", "relay", "standby", "handler", "prometheus"):
        code = stack.stop(service)
        assert code == 0 or service == "handler", f"{service} ended with {code}"
    dead = [stack.sql(f"SELECT count(*) FROM {table}") for table in ("outbox_dead_letter", "inbox_dead_letter")]
    assert dead == ["0", "0"], dead
    print(f"{EVENTS} events committed, {EVENTS} effects, 0 lost, 0 twice, 0 dead letters, one relay killed")


def play(name, run):
    """Runs it in a folder of its own; ends what it started, and shows the logs if it failed."""
    PROGRAMS.update({name: str((ROOT / path).resolve()) for name, path in PROGRAMS.items()})
    with tempfile.TemporaryDirectory(prefix=f"{name}.") as folder:
        os.chmod(folder, 0o755)
        stack = Stack(pathlib.Path(folder))
        failed = True
        try:
            run(stack)
            failed = False
        finally:
            for process in stack.processes.values():
                process.kill()
            for process in stack.processes.values():
                process.wait()
            for log in sorted(stack.folder.glob("*.log")) if failed else []:
                print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:]), file=sys.stderr)


if __name__ == "__main__":
    play("compose_by_hand", run)
