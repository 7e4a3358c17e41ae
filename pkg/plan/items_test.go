package plan

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestReadItems(t *testing.T) {
	items, err := ReadItems(strings.NewReader("count,id,quota,sm_pct,mem_mib,other\n,a,0.4,12,,x\n2,b,1e-1,50.50,1.5,\n1,b#3,1,100,2,\n"), "i.csv")
	if err != nil {
		t.Fatal(err)
	}
	want := []Item{
		{"a", Decimal{4, 1}, Decimal{12, 0}, 0, 1, 2},
		{"b", Decimal{1, 1}, Decimal{505, 1}, 1.5, 2, 3},
		{"b#3", Decimal{1, 0}, Decimal{100, 0}, 2, 1, 4},
	}
	for i, w := range want {
		if items[i] != w {
			t.Errorf("item %d: %+v, want %+v", i, items[i], w)
		}
	}
	if a, b := items[0].CopyID(1), items[1].CopyID(2); a != "a" || b != "b#2" {
		t.Errorf("copies %s and %s", a, b)
	}
}

func TestReadItemsRejects(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "i.csv:1: the file is empty",
		"id,quota\na,1":             "i.csv:1: sm_pct: the header has no such column",
		"id,quota,sm_pct\na,0,1":    `i.csv:2: quota: "0" is out of range, expected more than 0`,
		"id,quota,sm_pct\na,1,-5":   `i.csv:2: sm_pct: "-5" is negative`,
		"id,quota,sm_pct\na,NaN,5":  `i.csv:2: quota: "NaN" is not a number`,
		"id,quota,sm_pct\na,0x5,5":  `i.csv:2: quota: "0x5" is not a number`,
		"id,quota,sm_pct\na,.,5":    `i.csv:2: quota: "." is not a number`,
		"id,quota,sm_pct\na,1e99,5": `i.csv:2: quota: "1e99" is not a number`,
		"id,quota,sm_pct\na,0.1234567890123456789,5":    `i.csv:2: quota: "0.1234567890123456789" has too many digits`,
		"id,quota,sm_pct\na,1,5\na,1,5":                 `i.csv:3: id: "a" is on line 2 already`,
		"id,quota,sm_pct,count\na,1,5,0":                `i.csv:2: count: "0" is out of range`,
		"id,quota,sm_pct,count\na,1,5,1.5":              `i.csv:2: count: "1.5" is not a whole number`,
		"id,quota,sm_pct,count\na,1,5,5000001":          `i.csv:2: count: "5000001" is out of range`,
		"id,quota,sm_pct,count\na,1,5,5000000\nb,1,1,1": "i.csv:3: count: 5000001 items up to this line",
		"id,quota,sm_pct,count\na#2,1,5,1\na,1,1,2":     `i.csv:2: id: "a#2" is also the ID of a copy of "a" on line 3`,
		"id,quota,sm_pct,mem_mib\na,1,5,-1":             `i.csv:2: mem_mib: "-1" is negative`,
	} {
		_, err := ReadItems(strings.NewReader(in), "i.csv")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
}

func TestDecimalsPrintAsTheyRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, digits := rapid.Int64Range(0, 999_999_999_999_999_999).Draw(t, "v"), rapid.IntRange(0, maxDigits).Draw(t, "digits")
		text := string(AppendDecimal([]byte("x"), v, digits))[1:]
		d, err := parseDecimal(text)
		if err != nil || d.Scaled(digits) != v || d.String() != text {
			t.Fatalf("%d / 10^%d: %s reads %+v, prints %s, %v", v, digits, text, d, d, err)
		}
	})
}

func TestScaledSaturates(t *testing.T) {
	if v := (Decimal{5, 0}).Scaled(19); v != 1<<63-1 {
		t.Errorf("5 in 10^-19 is %d", v)
	}
}

func FuzzReadItems(f *testing.F) {
	f.Add("id,quota,sm_pct,mem_mib,count\na,0.4,12,100,3\nb,1e-1,+5.0,,\n")
	f.Add("id,quota,sm_pct\n\"a\nb\",1,.5\n")
	f.Fuzz(func(t *testing.T, text string) {
		items, err := ReadItems(strings.NewReader(text), "i.csv")
		if err != nil {
			return
		}
		for _, i := range items {
			for _, d := range []Decimal{i.Quota, i.SMPct} {
				again, err := parseDecimal(d.String())
				if err != nil || again != d || d.Unscaled <= 0 {
					t.Fatalf("%+v prints %s, which reads %+v, %v", d, d, again, err)
				}
			}
			if i.Count < 1 || i.ID == "" {
				t.Fatalf("%+v, want Count at least 1 and ID set", i)
			}
		}
	})
}
