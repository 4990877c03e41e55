"""An OpenAPI document as one page of HTML: no script, nothing fetched from anywhere."""

from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, CanvasText 15%, Canvas);
  --soft: color-mix(in srgb, CanvasText 5%, Canvas); --quiet: color-mix(in srgb, CanvasText 65%, Canvas) }
body { font: 15px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 2.5rem auto; padding: 0 1.25rem;
  background: Canvas; color: CanvasText }
code { font: 0.92em ui-monospace, monospace }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2.5rem } h3 { font-size: 1rem; margin: 1.6rem 0 0.3rem }
details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; padding: 0 0.9rem }
summary { cursor: pointer; padding: 0.55rem 0 } details[open] > summary { border-bottom: 1px solid var(--line) }
.method { display: inline-block; min-width: 3.2rem; font-weight: 600 } .quiet { color: var(--quiet) }
table { border-collapse: collapse; width: 100%; margin: 0.4rem 0 0.9rem }
td, th { text-align: left; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--line) }
th { font-weight: 500; color: var(--quiet) } a { color: LinkText } a:not(:hover) { text-decoration: none }
"""
_BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "exclusiveMinimum": "> {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}


def render_page(api: dict[str, Any]) -> str:
    """The page of a document."""
    title = escape(api["info"]["title"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{_prose(api['info']['description'])}</p>"
        f"{''.join(_endpoints(api))}<h2>Schemas</h2>{''.join(_schemas(api))}</body></html>\n"
    )


def _endpoints(api: dict[str, Any]) -> Iterator[str]:
    group = ""
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            if operation["tags"][0] != group:
                group = operation["tags"][0]
                yield f"<h2>{escape(group)}</h2>"
            yield (
                f'<details><summary><code><span class="method">{escape(method.upper())}</span> {escape(path)}</code> '
                f'<span class="quiet">{escape(operation["summary"])}</span></summary>'
                f"{''.join(_operation(operation))}</details>"
            )


def _operation(operation: dict[str, Any]) -> Iterator[str]:
    if "description" in operation:
        yield f"<p>{_prose(operation['description'])}</p>"
    yield "<table>"
    if "requestBody" in operation:
        yield f"<tr><th>body</th><td>{_content(operation['requestBody']['content'])}</td></tr>"
    for status, response in operation["responses"].items():
        said = f"{escape(response['description'])}: {_content(response['content'])}"
        yield f"<tr><th>{escape(status)}</th><td>{said}</td></tr>"
    yield "</table>"


def _content(content: dict[str, Any]) -> str:
    (media_type, entry), *_ = content.items()
    schema = entry["schema"]
    return f"<code>{escape(media_type)}</code>{' ' + _type(schema) if schema else ''}"


def _schemas(api: dict[str, Any]) -> Iterator[str]:
    for name, schema in sorted(api["components"]["schemas"].items()):
        yield f'<h3 id="{escape(name)}"><code>{escape(name)}</code></h3>'
        yield f"<p>{_prose(schema.get('description', ''))}</p>"
        if "enum" in schema:
            yield f"<p>{_type(schema)}</p>"
        if "properties" in schema:
            required = schema.get("required", ())
            rows = (_row(field, inner, field in required) for field, inner in schema["properties"].items())
            yield f"<table><tr><th>field</th><th>type</th><th>meaning</th></tr>{''.join(rows)}</table>"


def _row(name: str, schema: dict[str, Any], is_required: bool) -> str:
    notes = [_prose(schema["description"])] if "description" in schema else []
    notes += [escape(text.format(schema[key])) for key, text in _BOUNDS.items() if key in schema]
    if is_required:
        notes.append("required")
    elif schema.get("default") not in (None, "", [], {}) and not isinstance(schema["default"], dict):
        notes.append(f"default <code>{escape(str(schema['default']))}</code>")
    return f"<tr><td><code>{escape(name)}</code></td><td>{_type(schema)}</td><td>{'; '.join(notes)}</td></tr>"


def _type(schema: dict[str, Any]) -> str:
    """A schema in a few words, with links to named ones."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}"><code>{name}</code></a>'
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"<code>{escape(repr(value))}</code>" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_type(schema['additionalProperties'])}"
    return escape(str(schema.get("type", "anything")))


def _prose(text: str) -> str:
    """Escaped text in which `backticks` become code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
