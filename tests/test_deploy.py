"""The files in deploy/: read by the tools they are for, where those are here, and checked for what matters."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from slipform.addons.server.calls.pages import LIVE, READY
from slipform.addons.server.observability.metrics import Metrics
from slipform.config import read_settings

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "slipform.service")
    return parser


def test_the_unit_runs_reloads_and_waits_for_the_drain() -> None:
    service = unit()["Service"]
    assert "slipform serve" in service["ExecStart"]
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    assert int(service["TimeoutStopSec"]) > read_settings("").server.drain_seconds
    assert (service["DynamicUser"], service["ProtectSystem"], service["NoNewPrivileges"]) == ("yes", "strict", "yes")


def test_the_unit_can_read_a_key_file_and_remember_revocations() -> None:
    service, page = unit()["Service"], (ROOT / "docs" / "deploy.md").read_text()
    group = service["SupplementaryGroups"]
    assert f"groupadd --system {group}" in page
    assert f"chgrp {group} /etc/slipform/keys.json && chmod 640" in page
    assert service["StateDirectory"] == "slipform"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "slipform.service").read_text().replace("/opt/slipform/bin/slipform", "/bin/true")
    copy = tmp_path / "slipform.service"
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert "slipform.service" not in done.stderr, done.stderr


def test_the_container_is_an_ordinary_user_and_stops_in_good_order() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    steps = [line.split(" ", 1) for line in lines if re.match(r"[A-Z]+ ", line)]
    words = [word for word, _ in steps]
    assert words[0] == "FROM"
    assert dict(steps)["USER"] == "10001:10001"
    assert dict(steps)["STOPSIGNAL"] == "SIGTERM"
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert "HEALTHCHECK" in words
    for name in re.findall(r"--requirement (\S+)", "\n".join(lines)):
        assert (ROOT / name).is_file()


def test_the_images_base_and_packages_are_pinned_by_hash() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert re.findall(r"^FROM (?!\S+@sha256:[0-9a-f]{64})", text, re.MULTILINE) == []
    installs = re.findall(r"pip (?:install|wheel) (.*)", text)
    assert installs
    assert [each for each in installs if "--require-hashes" not in each and "--no-deps" not in each] == []


def _pins(path: Path) -> dict[str, str]:
    pins = re.findall(r"^([A-Za-z0-9._-]+)(?:\[\S+\])?==([^\s;\\]+)", path.read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def test_the_image_installs_the_versions_that_the_tests_run_with() -> None:
    tested = _pins(ROOT / "constraints.txt")
    for file in (DEPLOY / "requirements.txt", DEPLOY / "build-requirements.txt"):
        locked = _pins(file)
        assert len(locked) > 5
        differing = {name: version for name, version in locked.items() if tested.get(name, version) != version}
        assert differing == {}, f"{file.name}: run .ci/lock"


def test_actions_are_pinned_to_commits_and_tools_by_hash() -> None:
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    text = "\n".join(each.read_text() for each in workflows)
    assert re.findall(r"uses: (?!\S+@[0-9a-f]{40} # v)\S+", text) == []
    installs = re.findall(r"pip install (.*)", text)
    assert [each for each in installs if "--require-hashes" not in each and "--constraint" not in each] == []


def test_the_balancer_takes_what_the_server_takes() -> None:
    size = re.search(r"client_max_body_size (\d+)m;", (DEPLOY / "nginx.conf").read_text())
    assert size is not None
    assert int(size[1]) * 1024 * 1024 == read_settings("").server.max_file_bytes


def test_the_balancer_lets_streams_through() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert text.count("{") == text.count("}")
    for line in ("proxy_buffering off;", "proxy_http_version 1.1;", 'proxy_set_header Connection "";'):
        assert line in text
    assert "$request_uri" not in text
    assert "$args" not in text
    kept = re.search(r"keepalive_timeout (\d+)s", text)
    assert kept is not None
    assert int(kept[1]) < 75
    hidden = re.search(r"location ~ (\S+) \{\s*return 404;", text)
    assert hidden is not None
    for page in ("/metrics", "/docs", "/openapi.json", "/version", "/console/", "/console/api/v1/me"):
        assert re.search(hidden[1], page), page
    waits = re.search(r"proxy_read_timeout (\d+)s", text)
    assert waits is not None
    assert int(waits[1]) > read_settings("").server.request_seconds


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not here")
def test_nginx_understands_its_file() -> None:
    subprocess.run(["nginx", "-t", "-c", str(DEPLOY / "nginx.conf")], check=True, capture_output=True)


def test_the_settings_shown_are_settings() -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "deploy.md").read_text(), re.MULTILINE | re.DOTALL)
    ours = [block for block in shown if "model_list" not in block and "scrape_configs" not in block]
    assert len(ours) == 3
    for block in ours:
        read_settings(block)
    assert all(isinstance(yaml.safe_load(block), dict) for block in shown)


def test_the_kubernetes_manifests_fit_together_and_their_settings_load() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    by_kind = {each["kind"]: each for each in documents}
    assert set(by_kind) == {"ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    server = read_settings(by_kind["ConfigMap"]["data"]["slipform.yaml"]).server
    pod = by_kind["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > server.notice_seconds + server.drain_seconds
    assert container["ports"][0]["containerPort"] == server.port
    for probe, pages in (("readinessProbe", READY), ("livenessProbe", LIVE)):
        assert container[probe]["httpGet"]["path"] in pages
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert {each["name"] for each in pod["spec"]["volumes"]} == set(mounted.values())
    assert str(Path(server.keys_file or "").parent) in mounted
    labels = pod["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget"):
        selector = by_kind[kind]["spec"]["selector"]
        assert selector.get("matchLabels", selector) == labels
    metric = by_kind["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert f"{metric} ".encode() in Metrics(list).render()[0]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
