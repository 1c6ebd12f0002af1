// Prints what Kubernetes itself makes of quantities: text, billionths, canonical decimal, canonical binary.
package main

import (
	"bufio"
	"fmt"
	"math/rand"
	"os"

	"gopkg.in/inf.v0"
	"k8s.io/apimachinery/pkg/api/resource"
)

var picked = []string{
	"0", "00", "-0", "+0", "1", "-1", "+1", "007", "12E", "5Ei", ".5", "5.", "5.Gi", ".5Ki", "-.5", "1.5", "1.5Gi", "0.5Mi",
	"100m", "250m", "0.1m", "1n", "1u", "0.1n", "0.00000000001", "-0.00000000001", "1.0000000001", "-1.0000000001",
	"1k", "1K", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei", "7Ei", "8Ei", "-8Ei", "9999Ei",
	"1e3", "1E3", "1e-3", "1E-3", "1e+3", "1.5e3", "12e6", "1e0", "1e-9", "1e-10", "1e-400", "0e999", "1e18", "1e19", "9223372036854775807",
	"9223372036854775808", "-9223372036854775808", "123456789012345678901234567", "1000Gi", "1024Gi", "1023", "1024", "1025", "2048", "1536",
	"0.3333333333333333333Gi", "1.000000000000000000000000000000000000000000001Ki", "100.5Ki", "3.3Ei", "7.999999999999999999Ei", "8589934592", "16394052Ki",
	"", " 1", "1 ", "1.1.1", "1..", "1i", "1Kii", "Ki1", "1e", "1ee3", "1e3.5", "1e3k", "1mi", "0.1mi", "1KiB", "1GB", "aoeu", "--1", "+-1", "1-", "1,5", "0x10",
	"1_000", "1e99999999999999999999", "½", "1²", "1m1", "1E1Ki", "infinity", "NaN", ".", "-", "+", "k", "Ki", "-.", "1e1-", "1e--1",
	"1e30", "1e308", "-1e308", "1e-308", "12345e300", "1e4294967297", "1e9223372036854775807", "1e-9223372036854775808", "1e-4294967297", "99999Ei",
}

func quantities() {
	file, err := os.Create("quantity.tsv")
	check(err)
	defer file.Close()
	out := bufio.NewWriter(file)
	defer out.Flush()
	for _, text := range picked {
		line(out, text)
	}
	random := rand.New(rand.NewSource(1))
	suffixes := []string{"", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e2", "e-4", "E5"}
	for range 200 {
		text := ""
		if random.Intn(4) == 0 {
			text = "-"
		}
		for range 1 + random.Intn(8) {
			text += string(rune('0' + random.Intn(10)))
		}
		if random.Intn(2) == 0 {
			text += "."
			for range random.Intn(14) {
				text += string(rune('0' + random.Intn(10)))
			}
		}
		line(out, text+suffixes[random.Intn(len(suffixes))])
	}
}

func line(out *bufio.Writer, text string) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		fmt.Fprintf(out, "%s\terror\n", text)
		return
	}
	nano := new(inf.Dec).Round(quantity.AsDec(), 9, inf.RoundExact).UnscaledBig()
	fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", text, nano, printed(quantity, resource.DecimalSI), printed(quantity, resource.BinarySI))
}

// "?" where Kubernetes prints something else than the amount: it loses suffixes above E and Ei.
func printed(quantity resource.Quantity, format resource.Format) string {
	fresh := resource.NewDecimalQuantity(*new(inf.Dec).Set(quantity.AsDec()), format)
	text := fresh.String()
	if again, err := resource.ParseQuantity(text); err != nil || again.Cmp(quantity) != 0 {
		return "?"
	}
	return text
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
