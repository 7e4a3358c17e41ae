package journal

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	magic         = "gfaas-async 1\n" // begins each segment
	family        = "gfaas-async "    // so do those of other versions
	segmentSuffix = ".log"
	bodySuffix    = ".body"

	maxInline  = 64 << 10 // largest body within a record
	maxHead    = 4 << 20  // largest JSON of a record
	maxRecord  = recordHead + maxHead + maxInline
	recordHead = 12 // length, checksum and length of the JSON, 4 bytes each
)

// castagnoli is made when it is first needed, not at every program's start.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// segment is one file of the log.
type segment struct {
	number uint64
	path   string
	size   int64
	live   int64 // bytes of records that are needed
}

// place is where a record is.
type place struct {
	segment      *segment
	offset, size int64
}

// head is the JSON of a record. What follows it is the body, if it is short.
type head struct {
	Call
	Note bool   `json:"note,omitempty"` // Attempts and Posts are all that it says
	File string `json:"file,omitempty"` // of a long body
	Size int64  `json:"size,omitempty"` // of the file
	CRC  uint32 `json:"crc,omitempty"`  // of the file
}

var bodyName = regexp.MustCompile(`^[0-9a-f]{16}\` + bodySuffix + `$`)

// valid says whether this package wrote it.
func (h *head) valid() bool {
	switch {
	case h.ID == "":
		return false
	case h.Note:
		return true
	}
	return h.State.valid() && (h.File == "" || bodyName.MatchString(h.File) && h.Size >= 0)
}

func newRecord(c *Call, b *Body) ([]byte, error) {
	h := head{Call: *c}
	if b == nil {
		return encode(h, nil)
	}
	h.File, h.Size, h.CRC = b.name(), b.size, b.sum
	return encode(h, b.inline)
}

// encode is a record: the length of what follows the checksum and the checksum
// of that (CRC-32C, which the length is part of), the length of the JSON, the
// JSON and the body; numbers are little-endian.
func encode(h head, body []byte) ([]byte, error) {
	text, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(text) > maxHead {
		return nil, fmt.Errorf("call %s has %d bytes of headers, more than can be kept", NameOf(h.ID), len(text))
	}
	size := recordHead + len(text) + len(body)
	r := make([]byte, recordHead, size)
	binary.LittleEndian.PutUint32(r[0:], uint32(size-8))
	binary.LittleEndian.PutUint32(r[8:], uint32(len(text)))
	r = append(append(r, text...), body...)
	binary.LittleEndian.PutUint32(r[4:], checksum(r))
	return r, nil
}

func checksum(r []byte) uint32 {
	return crc32.Update(crc32.Checksum(r[:4], castagnoli()), castagnoli(), r[8:])
}

// decode reads the record at the begin of data, which must be whole. Size is
// that of the record; the body is part of data.
func decode(data []byte) (h head, body []byte, size int64, ok bool) {
	if len(data) < recordHead {
		return head{}, nil, 0, false
	}
	rest := binary.LittleEndian.Uint32(data)
	text := binary.LittleEndian.Uint32(data[8:])
	if rest > maxRecord-8 || int(rest)+8 > len(data) || rest < 4 || text > rest-4 {
		return head{}, nil, 0, false
	}
	r := data[:rest+8]
	if checksum(r) != binary.LittleEndian.Uint32(r[4:]) {
		return head{}, nil, 0, false
	}
	if json.Unmarshal(r[recordHead:recordHead+text], &h) != nil || !h.valid() {
		return head{}, nil, 0, false
	}
	return h, r[recordHead+text:], int64(len(r)), true
}

// scan calls see for each record of a segment's data, with its offset and size,
// and returns where it ended: at the end, or before what is no whole record.
func scan(data []byte, see func(h head, body []byte, offset, size int64)) int64 {
	offset := int64(len(magic))
	for {
		h, body, size, ok := decode(data[offset:])
		if !ok {
			return offset
		}
		see(h, body, offset, size)
		offset += size
	}
}

// readSegment returns a segment's data; none of one that was not begun whole.
func readSegment(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	switch text := string(data[:min(len(data), len(magic))]); {
	case text == magic:
		return data, nil
	case strings.HasPrefix(magic, text):
		return []byte(magic), nil
	case strings.HasPrefix(text, family):
		return nil, fmt.Errorf("%s belongs to another version of gfaas", path)
	}
	return nil, fmt.Errorf("%s is no journal of gfaas", path)
}

// load reads the folder.
func (j *Journal) load() error {
	files, err := os.ReadDir(j.dir)
	if err != nil {
		return err
	}
	var bodies []string
	for _, f := range files {
		name, isLog := strings.CutSuffix(f.Name(), segmentSuffix)
		number, err := strconv.ParseUint(name, 16, 63)
		switch {
		case isLog && err == nil && len(name) == 16:
			j.segments = append(j.segments, &segment{number: number, path: filepath.Join(j.dir, f.Name())})
		case bodyName.MatchString(f.Name()):
			bodies = append(bodies, f.Name())
		}
	}
	slices.SortFunc(j.segments, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	for _, s := range j.segments {
		if err := j.loadSegment(s); err != nil {
			return err
		}
		j.next = s.number + 1
	}
	named := map[string]bool{}
	for _, e := range j.entries {
		if e.state.Ended() {
			j.end(e)
		} else if e.file != "" {
			named[e.file] = true
		}
	}
	slices.SortFunc(j.ended, func(a, b *entry) int { return a.endedT.Compare(b.endedT) })
	for _, name := range bodies {
		if number, err := strconv.ParseUint(strings.TrimSuffix(name, bodySuffix), 16, 64); err == nil {
			j.bodies = max(j.bodies, number+1)
		}
		if !named[name] {
			j.removeBody(name)
		}
	}
	return nil
}

func (j *Journal) loadSegment(s *segment) error {
	data, err := readSegment(s.path)
	if err != nil {
		return err
	}
	s.size = int64(len(data))
	end := scan(data, func(h head, _ []byte, offset, size int64) {
		e := j.entries[h.ID]
		switch {
		case h.Note && e != nil:
			e.attempts, e.posts = h.Attempts, h.Posts
			return
		case h.Note:
			return // what it is about was written again behind it, or is over
		case e != nil:
			j.drop(e.at)
		default:
			e = &entry{summary: summary{id: h.ID}}
			j.add(e)
		}
		e.summary, e.file, e.at = summarize(&h.Call), h.File, place{s, offset, size}
		s.live += size
		j.live += size
	})
	if left := s.size - end; left > 0 {
		j.opts.Log.Warn("the journal ends in what is no whole record: a kill or a full disk leaves that",
			"file", s.path, "offset", end, "bytes", left)
	}
	return nil
}

// sizes are when segments begin and end. Tests have smaller ones.
type sizes struct {
	segment int64 // bytes after which another is begun
	waste   int64 // bytes there may be of records that are not needed, beside as many as are
	least   int64 // what a segment counts, however small it is: so that there are not many
	inline  int   // largest body within a record
}

var usual = sizes{segment: 8 << 20, waste: 16 << 20, least: 64 << 10, inline: 64 << 10}

// tidy writes what is needed of the oldest segment again, and removes it, if too
// much of the log is waste, or failed says that the disk is full. The caller
// holds io. Each write is followed by one such step at most, and so keeps pace.
func (j *Journal) tidy(failed error) {
	if j.closed {
		return
	}
	var total, allowed int64
	for _, s := range j.segments {
		total += max(s.size, j.sizes.least)
	}
	j.mu.Lock()
	allowed = 2*j.live + j.sizes.waste
	if failed != nil || j.short {
		allowed = j.live + j.sizes.least*int64(len(j.segments))
	}
	j.mu.Unlock()
	if total <= allowed || len(j.segments) == 0 {
		return
	}
	if err := j.moveOldest(); err != nil {
		j.opts.Log.Warn("the journal was not tidied", "err", err)
	}
}

func (j *Journal) moveOldest() error {
	oldest := j.segments[0]
	if oldest == j.active {
		j.seal()
	}
	data, err := readSegment(oldest.path)
	if err != nil {
		return err
	}
	// What is on disk is what the entries say, while nobody else writes.
	var needed []*entry
	j.mu.Lock()
	for _, e := range j.entries {
		if e.at.segment == oldest {
			needed = append(needed, e)
		}
	}
	slices.SortFunc(needed, func(a, b *entry) int { return cmp.Compare(a.at.offset, b.at.offset) })
	again, places := rewrite(data, needed)
	j.mu.Unlock()
	var to place
	if len(again) > 0 {
		if to, err = j.write(again); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, e := range needed {
		if j.entries[e.id] != e {
			continue // forgotten meanwhile
		}
		j.drop(e.at)
		if e.at.size = places[i].size; e.at.size == 0 {
			j.opts.Log.Error("the record of a call is damaged", "call", NameOf(e.id), "file", oldest.path)
			continue
		}
		e.at.segment, e.at.offset = to.segment, to.offset+places[i].offset
		e.at.segment.live += e.at.size
		j.live += e.at.size
	}
	if err := os.Remove(oldest.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // and it stays the oldest: no later one is removed before it
	}
	j.segments = j.segments[1:]
	return nil
}

// rewrite returns the records of entries, out of a segment's data, as they are to
// be written again, and where each is then. The size of one that is damaged is 0.
func rewrite(data []byte, entries []*entry) ([]byte, []place) {
	var again []byte
	places := make([]place, len(entries))
	for i, e := range entries {
		h, body, _, ok := decode(data[min(e.at.offset, int64(len(data))):])
		if !ok || h.ID != e.id {
			continue
		}
		h.Attempts, h.Posts = e.attempts, e.posts
		r, err := encode(h, body)
		if err != nil {
			continue
		}
		places[i] = place{offset: int64(len(again)), size: int64(len(r))}
		again = append(again, r...)
	}
	return again, places
}
