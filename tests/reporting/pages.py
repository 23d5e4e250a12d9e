"""What is in a page: its elements, texts, scripts and data, read as a browser reads them."""

import json
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "hr"}


class Page(HTMLParser):
    """A page, whose elements have to be closed in order."""

    def __init__(self, file):
        super().__init__(convert_charrefs=True)
        self.text, self.elements, self.datas, self.ids, self.open = "", [], [], set(), []
        self.source = file.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if "id" in attributes:
            assert attributes["id"] not in self.ids
            self.ids.add(attributes["id"])
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.datas.append(json.loads(data, parse_constant=lambda word: 1 / 0))
        elif tag not in ("script", "style"):
            self.text += data

    def all(self, tag, **wanted):
        """The attributes of all elements of a name."""
        return [one for name, one in self.elements if name == tag and wanted.items() <= one.items()]

    def titles(self):
        """The names of the places that are drawn."""
        return [one["data-name"] for one in self.all("article") if "data-name" in one]
