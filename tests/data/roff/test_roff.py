from __future__ import annotations

import difflib
import re
import shutil
import subprocess

import pytest

from longattn.data.roff import page_to_text
from longattn.data.roff.escapes import arguments, plain

MAN = r"""
'\" t
.\" A comment
.TH EXAMPLE 1 2024-01-01 "example 1.0" "User Commands"
.ie \n(.g .ds Aq \(aq
.el       .ds Aq '
.de URL
\fI\\$2\fP <\\$1>\\$3
..
.ig
This is not printed.
..
.SH NAME
example \- show \fIhow\fP a page is read
.SH SYNOPSIS
.B example
[\fB\-v\fR]
.RI [ file " ...]"
.SH DESCRIPTION
A paragraph that goes
on in a second line, with \(lqquotes\(rq, don\*(Aqt
.\" a comment inside
and a back\eslash.
.PP
Another one.\" with a comment at its end
See
.BR other (1),
and the rest.
.SS "A subsection with blanks"
.TP
.B \-v
Be verbose.
.TP
\fB\-\-colour\fP=\fIWHEN\fP
Colour, \fIWHEN\fP.
.IP \(bu 2
A bullet.
.IP "a longer tag" 4
Its text.
.nf
  literal   text
    kept
.fi
filled
again
.if t .B not in a terminal
.if n .B in a terminal
.ie t \{\
two
lines
.\}
.el \{\
.B otherwise
this
.\}
.URL "http://example.org" "A link" .
.TS
tab(|);
l l
l l.
left|right
_
T{
a block
of text
T}|\fBbold\fP
.TE
Done.
"""

MAN_TEXT = """\
NAME
example - show how a page is read

SYNOPSIS
example [-v] [file ...]

DESCRIPTION
A paragraph that goes on in a second line, with “quotes”, don't and a back\\slash.

Another one. See other(1), and the rest.

A subsection with blanks

-v
Be verbose.

--colour=WHEN
Colour, WHEN.

• A bullet.

a longer tag
Its text.
  literal   text
    kept
filled again in a terminal otherwise this A link <http://example.org>.

left  right
a block of text  bold

Done.
"""

MDOC = r"""
.Dd January 1, 2024
.Dt EXAMPLE 1
.Os
.Sh NAME
.Nm example
.Nd show how a page is read
.Sh SYNOPSIS
.Nm
.Op Fl v
.Op Fl o Ar file
.Ar name ...
.Sh DESCRIPTION
.Nm
reads
.Pa /etc/example.conf ,
see
.Xr other 5 .
.Pp
The options
.Pq all of them
are as follows:
.Bl -tag -width indent
.It Fl v
Be
.Em verbose .
.It Fl o Ar file
Write to
.Dq Ar file .
.El
.Bl -bullet
.It
one
.It
two
.El
.Bl -enum
.It
first
.It
second
.El
.Bd -literal
$ example  -v
.Ed
Call
.Fn read "int fd" "void *buffer" ;
it is
.Ns not
.Oo optional
.Oc
.Pf ( Ar x )
.br
.Ex -std
"""

MDOC_TEXT = """\
NAME
example - show how a page is read

SYNOPSIS
example [-v] [-o file] name ...

DESCRIPTION
example reads /etc/example.conf, see other(5).

The options (all of them) are as follows:
-v
Be verbose.
-o file
Write to “file”.

• one
• two

1. first
2. second

$ example  -v
Call read(int fd, void *buffer); it isnot [optional] (x)
The example utility exits 0 on success, and >0 if an error occurs.
"""


@pytest.mark.parametrize(("page", "text"), [(MAN, MAN_TEXT), (MDOC, MDOC_TEXT)], ids=["man", "mdoc"])
def test_page(page, text):
    assert page_to_text(page.lstrip("\n")) == text


@pytest.mark.skipif(not shutil.which("groff"), reason="groff, the reference, is not installed")
@pytest.mark.parametrize("page", [MAN, MDOC], ids=["man", "mdoc"])
def test_the_words_are_those_of_groff(page):
    preamble = ".nh\n.de hy\n..\n.na\n.de ad\n..\n"
    command = ["groff", "-Kutf8", "-t", "-mandoc", "-Tutf8", "-P-cbou", "-rLL=200n"]
    done = subprocess.run(command, input=preamble + page.lstrip("\n"), capture_output=True, text=True, check=True)
    if not done.stdout.strip():
        pytest.skip("groff is installed without its manual-page macros")
    body = "\n".join(done.stdout.strip("\n").split("\n")[1:-1])
    theirs, ours = (re.findall(r"\w+", text) for text in (body, page_to_text(page.lstrip("\n"))))
    assert difflib.SequenceMatcher(None, theirs, ours, autojunk=False).ratio() > 0.97


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        (r"\fBbold\fR and \f(CWtyped\fP and \f[I]slanted\f[]", "bold and typed and slanted"),
        (r"1\-2 \(em 3\[u00E9] \[aq]", "1-2 — 3é '"),
        (r"\s-1small\s0 \s+2big\s-2", "small big"),
        (r"\h'3n'in \v'1'up\w'word'", "in up"),
        (r"a\&b\|c\^d\%e\/f", "abcdef"),
        (r"a\ b\~c\0d", "a b c d"),
        (r"\*(lqquoted\*(rq \*R", "“quoted” ®"),
        (r"back\eslash \\", "back\\slash \\"),
        (r"text \" comment", "text "),
        (r"\m[red]red\m[] \n(.x\N'65'\C'bu'", "red A•"),
        ("no escape", "no escape"),
    ],
)
def test_escapes(line, printed):
    assert plain(line) == printed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('a "b c" d', ["a", "b c", "d"]),
        (r"a\ b c", [r"a\ b", "c"]),
        ('"say ""hi""" x', ['say "hi"', "x"]),
        ("", []),
        ('"open end', ["open end"]),
    ],
)
def test_arguments(text, words):
    assert arguments(text) == words


@pytest.mark.parametrize(
    "page",
    [
        ".de X\n.X\n..\n.X\nend",  # a macro that calls itself
        ".ds A \\*A\n\\*A\nend",  # a string that holds itself
        ".if n \\{\\\n.B open\nend",  # a block without an end
        ".de X\nend",  # a definition without an end
        ".TS\nl.\na\n",  # a table without an end
        ".ig\nend",
        "\\",
        ".",
        ".Dd\n.El\n.It\n.Ed\n.Fn\n.Xr\n.Op\n.Oc\n",
        "",
    ],
)
def test_broken_pages_end(page):
    assert isinstance(page_to_text(page), str)
