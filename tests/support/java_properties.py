"""Texts of Java properties, with the names and values that java.util.Properties reads."""

TEXTS = {
    "a=1\nb: 2\nc 3\nd\n": {"a": "1", "b": "2", "c": "3", "d": ""},
    "# comment\n  ! another = one\n\n \t \na = # no comment\r\nb=\\\r\n   2": {"a": "# no comment", "b": "2"},
    "long = one,\\\n    two,\\\n\tthree\n": {"long": "one,two,three"},
    "path=C\\:\\\\keys\\\\ \nspace\\ d\\=k\\:ey = v \n": {"path": "C:\\keys\\ ", "space d=k:ey": "v "},
    "even=two\\\\\nnext=1": {"even": "two\\", "next": "1"},
    "u=\\u00e4\\uD83D\\uDE00 é😀\nt=\\t\\n\\r\\f\\q": {"u": "ä😀 é😀", "t": "\t\n\r\fq"},
    "a=1\na=2\n=empty\n:also\n": {"a": "2"},
    "end=x\\": {"end": "x"},
    "a = = b\nc\t:\f= d": {"a": "= b", "c": "= d"},
    "# a comment can't be continued \\\nb=2": {"b": "2"},
    # Examples of the documentation.
    "Truth = Beauty\nBeauty:Truth\n  Love                    :Love": {
        "Truth": "Beauty",
        "Beauty": "Truth",
        "Love": "Love",
    },
    "fruits    apple, banana, \\\n          pear\ncheeses\n": {
        "fruits": "apple, banana, pear",
        "cheeses": "",
    },
    "\\:\\=x": {":=x": ""},
    "value=\\\n# is a value\n\\\n#none\n": {"value": "# is a value"},
}
