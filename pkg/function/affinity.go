package function

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Affinity is the value of the key affinity: AffinityCookie, or a name of a header after
// affinityHeader. Calls with the same value of this cookie or header go to the same instance.
type Affinity string

// AffinityCookie stands for a cookie that the gateway sets.
const AffinityCookie Affinity = "cookie"

const affinityHeader = "header:"

// Header returns the name of the header, whose case has no meaning, or "".
func (a Affinity) Header() string {
	name, _ := strings.CutPrefix(string(a), affinityHeader)
	if name == string(a) {
		return ""
	}
	return name
}

// maxHeaderName bounds the name of a header, in bytes.
const maxHeaderName = 128

func (p *parser) affinity(n *yaml.Node, key string) Affinity {
	a := Affinity(p.word(n, key, "cookie, or header:NAME"))
	name, isHeader := strings.CutPrefix(string(a), affinityHeader)
	if a == "" || a == AffinityCookie || isHeader && name != "" && len(name) <= maxHeaderName && isToken(name) {
		return a
	}
	p.fail(n, key, "%q, expected cookie, or the name of a header, like header:X-Session-Id", string(a))
	return ""
}

// isToken reports whether a text is a token of HTTP (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", c)
	}) < 0
}
