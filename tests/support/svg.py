"""Reads what a chart drawn by matplotlib shows: its texts, and the marks by their ids."""

import re
from xml.etree import ElementTree

NAMESPACE = "{http://www.w3.org/2000/svg}"
Point = tuple[float, float]


class Drawing:
    """An SVG document."""

    def __init__(self, text: str) -> None:
        self.root = ElementTree.fromstring(text)
        _, _, self.width, self.height = map(float, self.root.attrib["viewBox"].split())

    def texts(self) -> list[str]:
        """The texts of the picture, in order."""
        return ["".join(element.itertext()) for element in self.root.iter(f"{NAMESPACE}text")]

    def ids(self, pattern: str) -> list[str]:
        """The ids of marks that match a pattern, in order."""
        return [name for element in self.root.iter() if re.fullmatch(pattern, name := element.get("id", ""))]

    def mark(self, name: str) -> ElementTree.Element:
        """The only element of this id."""
        (found,) = (element for element in self.root.iter() if element.get("id") == name)
        return found

    def points(self, name: str) -> list[Point]:
        """The corners of the paths of a mark, in picture coordinates, where y grows downwards."""
        paths = self.mark(name).iter(f"{NAMESPACE}path")
        numbers = [float(text) for path in paths for text in re.findall(r"-?[\d.]+", path.attrib["d"])]
        return list(zip(numbers[::2], numbers[1::2], strict=True))

    def box(self, panel: int) -> tuple[float, float, float, float]:
        """Left, right, top and bottom of the axes of a panel."""
        background = next(self.mark(f"panel-{panel}").iter(f"{NAMESPACE}path"))
        numbers = [float(text) for text in re.findall(r"-?[\d.]+", background.attrib["d"])]
        return min(numbers[::2]), max(numbers[::2]), min(numbers[1::2]), max(numbers[1::2])

    def ticks(self, panel: int, axis: str) -> dict[str, float]:
        """The labels of the ticks of the axis x or y of a panel, and where they are."""
        found = {}
        for element in self.mark(f"panel-{panel}").iter():
            if element.get("id", "").startswith(f"{axis}tick_"):
                place = next(element.iter(f"{NAMESPACE}use"))
                found["".join(element.itertext()).strip()] = float(place.attrib[axis])
        return found
