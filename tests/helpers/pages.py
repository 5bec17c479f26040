"""What the pages of reports have: charts, tables and the examples' data."""

import html
import json
import re


def charts_of(page):
    """By title: the curves of a chart, each a list of points in units of the drawing."""
    return {
        html.unescape(title): [
            [tuple(map(float, point.split(","))) for point in curve.split()]
            for curve in re.findall(r'points="([^"]*)"', figure)
        ]
        for title, figure in re.findall(
            r"<figcaption>(.*?)</figcaption>(.*?)</figure>", page, flags=re.DOTALL
        )
    }


def tables_of(page):
    """Caption -> rows of cells, without links."""
    tables = re.findall(r"<table><caption>(.*?)</caption>(.*?)</table>", page, re.DOTALL)
    return {
        caption: [
            [
                html.unescape(re.sub(r"</?a[^>]*>", "", cell))
                for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
            ]
            for row in re.findall(r"<tr>(.*?)</tr>", content)
        ]
        for caption, content in tables
    }


def data_of(page):
    """The data of the page's examples."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)
