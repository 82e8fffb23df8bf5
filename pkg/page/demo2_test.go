package page

import (
	"fmt"
	"os"
	"testing"

	"fence/test/browser"
)

func TestDemo2(t *testing.T) {
	out := os.Getenv("PAGE_OUT")
	if out == "" {
		t.Skip()
	}
	p := browser.Open(t, 1400, 1400)
	p.Go("file://" + out + "/index.html#t=1&turn=3")
	p.Until("document.documentElement.dataset.shown === '1'")
	var s string
	p.Eval("document.title+' '+document.querySelectorAll('.turn').length+' '+scrollY+' '+ document.querySelector('.xterm-rows').textContent.trim().slice(0,100)", &s)
	fmt.Println(s)
	p.Picture("/tmp/report-npm/b.png")
	p.Eval("document.querySelectorAll('.moments button')[5].click()", nil)
	p.Eval("scrollTo(0,0)", nil)
	p.Picture("/tmp/report-npm/c.png")
	fmt.Println(p.Said())
}
