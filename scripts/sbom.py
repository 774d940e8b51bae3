"""Prints a CycloneDX list of what the binary is built from: sbom.py TARGET, in a workspace with Cargo.lock."""

import hashlib, json, os, subprocess, sys, uuid

target = sys.argv[1]


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], check=True, capture_output=True, text=True).stdout


# As scripts/release builds it. What cargo resolves for the whole workspace is more: benchmarks and tests want other features.
built = cargo("tree", "--locked", "--package", "tailpost", "--no-default-features", "--features", "jemalloc,otlp", "--edges", "normal",
              "--target", target, "--prefix", "none", "--format", "{p}")
built = {tuple(line.split()[:2]) for line in built.splitlines() if line}
metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target))
packages = {it["id"]: it for it in metadata["packages"]}
nodes = {it["id"]: it for it in metadata["resolve"]["nodes"]}
checksums = {}
entry = {}
for line in open("Cargo.lock"):
    name, _, value = line.strip().partition(" = ")
    entry = {} if line.startswith("[[package]]") else entry
    entry[name] = value.strip('"')
    if name == "checksum":
        checksums[entry["name"], entry["version"]] = entry["checksum"]


def needs(node):
    """What is linked into it; what only builds or tests it is not."""
    normal = [it["pkg"] for it in node["deps"] if any(kind["kind"] is None for kind in it["dep_kinds"])]
    return [it for it in normal if (packages[it]["name"], f"v{packages[it]['version']}") in built]


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind):
    found = {"type": kind, "bom-ref": reference(package), "name": package["name"], "version": package["version"],
             "purl": reference(package)}
    if package["license"]:
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


root = next(it for it in packages.values() if it["name"] == "tailpost")
reached, waiting = {root["id"]}, [root["id"]]
while waiting:
    for it in needs(nodes[waiting.pop()]):
        if it not in reached:
            reached.add(it)
            waiting.append(it)
inner = sorted((packages[it] for it in reached if it != root["id"]), key=reference)
bom = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"component": component(root, "application"), "properties": [{"name": "target", "value": target}]},
    "components": [component(it, "library") for it in inner],
    "dependencies": sorted(
        ({"ref": reference(packages[it]), "dependsOn": sorted({reference(packages[dep]) for dep in needs(nodes[it])})}
         for it in reached), key=lambda it: it["ref"]),
}
# The same list has the same number.
digest = hashlib.sha256(json.dumps(bom, sort_keys=True).encode()).hexdigest()
bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}"
json.dump(bom, sys.stdout, indent=1)
print()
